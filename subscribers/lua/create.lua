-- Adds a subscriber, once: running it again with the same uuid changes nothing.
-- KEYS: 1 company's subscribers, 2 company's URLs, 3 companies of the partition
-- ARGV: 1 uuid, 2 URL, 3 subscriber JSON, 4 company, 5 most subscribers
-- Returns OK, TAKEN (another has the URL) or QUOTA.
local owner = redis.call('HGET', KEYS[2], ARGV[2])
if owner then
  return owner == ARGV[1] and 'OK' or 'TAKEN'
end
if redis.call('HLEN', KEYS[2]) >= tonumber(ARGV[5]) then
  return 'QUOTA'
end
redis.call('PERSIST', KEYS[1])
redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
redis.call('HSET', KEYS[2], ARGV[2], ARGV[1])
redis.call('SADD', KEYS[3], ARGV[4])
touch(KEYS[1])
return 'OK'
