-- Adds a subscriber. A second call with the same uuid changes nothing. A call that fails half-way, for a damaged key, can be
-- repeated.
-- KEYS: 1 the partition's due set, 2 a key that never exists, 3 company's
--       subscribers, 4 company's URLs, 5 companies of the partition
-- ARGV: 1 uuid, 2 URL, 3 subscriber JSON, 4 company, 5 maximum of subscribers, 6 key
--       prefix, 7 signing keys of the company, if it has none yet, 8 to 12 the settings of
--       its endpoint, in the order of configure, 13 number of its contacts
-- Returns OK, TAKEN (another subscriber has the URL) or QUOTA.
local owner = redis.call('HGET', KEYS[4], ARGV[2])
if owner then
  return owner == ARGV[1] and 'OK' or 'TAKEN'
end
if redis.call('HLEN', KEYS[4]) >= tonumber(ARGV[5]) then
  return 'QUOTA'
end
if ARGV[8] .. ARGV[10] .. ARGV[12] ~= '' then configure(ARGV[6], ARGV[4], ARGV[1], ARGV[8], ARGV[9], ARGV[10], ARGV[11], ARGV[12]) end
redis.call('SADD', KEYS[5], ARGV[4])
if ARGV[13] ~= '0' then redis.call('HSET', ARGV[6] .. 'ct', ARGV[4] .. '/' .. ARGV[1], '') end
redis.call('HSET', KEYS[3], ARGV[1], ARGV[3])
redis.call('HSETNX', KEYS[3], 'k', ARGV[7])
redis.call('HSET', KEYS[4], ARGV[2], ARGV[1])
touch(KEYS[3])
return 'OK'
