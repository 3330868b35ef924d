-- Stores a company's egress certificate, or removes it, if there is one.
-- KEYS: 1 company's subscribers, 2 certificates of the partition
-- ARGV: 1 certificate JSON, '' to remove it, 2 company, 3 end of the certificate (ms)
-- Returns 1.
if ARGV[1] ~= '' then
  redis.call('HSET', KEYS[1], 'c', ARGV[1])
  redis.call('ZADD', KEYS[2], ARGV[3], ARGV[2])
elseif redis.call('HDEL', KEYS[1], 'c') == 0 then
  return 1
else
  redis.call('ZREM', KEYS[2], ARGV[2])
end
touch(KEYS[1])
return 1
