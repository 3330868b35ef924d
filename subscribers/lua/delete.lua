-- Removes a subscriber. After the last one only the version stays, for a while;
-- with an egress certificate, both stay until that is removed.
-- KEYS: 1 company's subscribers, 2 company's URLs, 3 companies of the partition,
--       4 subscriber's health
-- ARGV: 1 uuid, 2 company, 3 ms to keep the version alone
-- Returns 1, or 0 when there is no such subscriber.
local current = redis.call('HGET', KEYS[1], ARGV[1])
if not current then
  return 0
end
local url = cjson.decode(current).callbackUrl
redis.call('HDEL', KEYS[1], ARGV[1])
redis.call('HDEL', KEYS[2], url)
redis.call('DEL', KEYS[4])
touch(KEYS[1])
if redis.call('EXISTS', KEYS[2]) == 0 then
  redis.call('SREM', KEYS[3], ARGV[2])
  if redis.call('HEXISTS', KEYS[1], 'c') == 0 then
    redis.call('PEXPIRE', KEYS[1], ARGV[3])
  end
end
return 1
