-- Stores a company's egress certificate.
-- KEYS: 1 company's subscribers, 2 certificates of the partition
-- ARGV: 1 certificate JSON, 2 company, 3 end of the certificate (ms)
redis.call('PERSIST', KEYS[1])
redis.call('HSET', KEYS[1], 'c', ARGV[1])
redis.call('ZADD', KEYS[2], ARGV[3], ARGV[2])
touch(KEYS[1])
return 1
