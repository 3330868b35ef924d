-- Begins an attempt of a delivery that the clock handed out.
-- KEYS[1] open zset, KEYS[2] deliveries hash, KEYS[3] event string,
--   KEYS[4] the company's subscribers hash
-- ARGV[1] delivery reference, ARGV[2] subscriber uuid,
-- ARGV[3] the score under which it was handed out: an older task of the same
--   delivery finds another score and does nothing
-- Returns {} when there is nothing to do, else
--   {record, event string or false, subscriber version}
local score = redis.call('ZSCORE', KEYS[1], ARGV[1])
if not score or tonumber(score) ~= tonumber(ARGV[3]) then
  return {}
end
local record = redis.call('HGET', KEYS[2], ARGV[2])
local status = record and string.sub(record, 1, 1)
if not record or status == 'D' or status == 'C' or status == 'X' then
  redis.call('ZREM', KEYS[1], ARGV[1])
  return {}
end
local bar = string.find(record, '|', 1, true)
local version = tonumber(string.sub(record, 2, bar - 1)) + 1
record = 'A' .. string.format('%d', version) .. string.sub(record, bar)
redis.call('HSET', KEYS[2], ARGV[2], record)
return {record, redis.call('GET', KEYS[3]), redis.call('HGET', KEYS[4], 'v') or '0'}
