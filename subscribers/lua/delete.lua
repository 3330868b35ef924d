-- Removes a subscriber. After the last one only the version stays, for a while;
-- with an egress certificate, both stay until that is removed.
-- KEYS: 1 company's subscribers, 2 company's URLs, 3 companies of the partition,
--       4 subscriber's health
-- ARGV: 1 uuid, 2 company, 3 ms to keep the version alone
-- Returns 1, or 0 when there is no such subscriber.
if redis.call('HDEL', KEYS[1], ARGV[1]) == 0 then
  return 0
end
local urls = redis.call('HGETALL', KEYS[2]) -- what stands in a damaged JSON is not known
for i = 1, #urls, 2 do
  if urls[i + 1] == ARGV[1] then
    redis.call('HDEL', KEYS[2], urls[i])
  end
end
redis.call('DEL', KEYS[4])
touch(KEYS[1])
if redis.call('EXISTS', KEYS[2]) == 0 then
  redis.call('SREM', KEYS[3], ARGV[2])
  if redis.call('HEXISTS', KEYS[1], 'c') == 0 then
    redis.call('PEXPIRE', KEYS[1], ARGV[3])
  end
end
return 1
