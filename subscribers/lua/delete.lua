-- Removes a subscriber. After the last subscriber of a company only the version stays, for
-- a limited time; with an egress certificate, version and certificate stay until the
-- certificate is removed.
-- KEYS: 1 the partition's due set, 2 a key that never exists, 3 company's
--       subscribers, 4 company's URLs, 5 companies of the partition, 6 subscriber's
--       health
-- ARGV: 1 uuid, 2 company, 3 ms to keep the version alone, 4 key prefix,
--       5 accepted revisions, with commas between; '' for any
-- Returns 1, or 0 when there is no such subscriber, or -1 when it has another revision.
if ARGV[5] ~= '' then
  local raw = redis.call('HGET', KEYS[3], ARGV[1])
  if raw and not string.find(ARGV[5], string.sub(redis.sha1hex(raw), 1, 16), 1, true) then return -1 end
end
if redis.call('HDEL', KEYS[3], ARGV[1]) == 0 then
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
redis.call('ZREM', ARGV[4] .. 'fs:' .. ARGV[2], ARGV[1])
touch(KEYS[3])
-- All waiting deliveries become due, without rate, order and pause, also those of a disabled
-- subscriber. They are claimed and then cancelled.
redis.call('HSET', ARGV[4] .. 'es:' .. ARGV[2] .. '/' .. ARGV[1], 'gone', 1)
configure(ARGV[4], ARGV[2], ARGV[1], '', '', '', '', clock())
resume(ARGV[4], ARGV[2], ARGV[1], clock())
redis.call('DEL', ARGV[4] .. 'hs:' .. ARGV[2] .. '/' .. ARGV[1])
redis.call('EXPIRE', ARGV[4] .. 'es:' .. ARGV[2] .. '/' .. ARGV[1], 2592000)
if redis.call('EXISTS', KEYS[4]) == 0 then
  redis.call('SREM', KEYS[5], ARGV[2])
  if redis.call('HEXISTS', KEYS[3], 'c') == 0 then
    redis.call('PEXPIRE', KEYS[3], ARGV[3])
  end
end
return 1
