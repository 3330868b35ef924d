-- Removes a subscriber and its own egress certificate. The version of the company's subscribers, its signing
-- keys and its egress certificate stay.
-- KEYS: 1 the partition's due set, 2 a key that never exists, 3 company's
--       subscribers, 4 company's URLs, 5 companies of the partition, 6 subscriber's
--       health
-- ARGV: 1 uuid, 2 company, 3 key prefix, 4 accepted revisions, with commas between; ''
--       for any
-- Returns -1 when the subscriber has another revision, else 0. A second call changes nothing. A call that fails half-way, for
-- a damaged key, can be repeated: the subscriber is removed last.
if ARGV[4] ~= '' then
  local raw = redis.call('HGET', KEYS[3], ARGV[1])
  if raw and not string.find(',' .. ARGV[4] .. ',', ',' .. string.sub(redis.sha1hex(raw), 1, 16) .. ',', 1, true) then return -1 end
end
if redis.call('HEXISTS', KEYS[3], ARGV[1]) == 0 then
  return 0
end
-- The subscriber's JSON may be damaged, so the script looks for its uuid in all URLs.
local urls = redis.call('HGETALL', KEYS[4])
for i = 1, #urls, 2 do
  if urls[i + 1] == ARGV[1] then
    redis.call('HDEL', KEYS[4], urls[i])
  end
end
redis.call('DEL', KEYS[6])
if redis.call('HDEL', KEYS[3], 'cs:' .. ARGV[1]) == 1 then redis.call('ZREM', ARGV[3] .. 'ec', ARGV[2] .. '/' .. ARGV[1]) end
redis.call('ZREM', ARGV[3] .. 'fs:' .. ARGV[2], ARGV[1])
-- All waiting deliveries become due, without rate, order and pause, also those of a disabled
-- subscriber. The owner cancels them.
redis.call('HSET', ARGV[3] .. 'es:' .. ARGV[2] .. '/' .. ARGV[1], 'gone', 1)
configure(ARGV[3], ARGV[2], ARGV[1], '', '', '', '', '')
resume(ARGV[3], ARGV[2], ARGV[1])
redis.call('DEL', ARGV[3] .. 'hs:' .. ARGV[2] .. '/' .. ARGV[1])
redis.call('EXPIRE', ARGV[3] .. 'es:' .. ARGV[2] .. '/' .. ARGV[1], 2592000)
redis.call('HDEL', KEYS[3], ARGV[1])
touch(KEYS[3])
if redis.call('EXISTS', KEYS[4]) == 0 then redis.call('SREM', KEYS[5], ARGV[2]) end
return 0
