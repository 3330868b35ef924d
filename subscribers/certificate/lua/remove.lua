-- Removes a company's egress certificate. For a company without subscribers only the
-- version stays, for a limited time.
-- KEYS: 1 company's subscribers, 2 certificates of the partition, 3 company's URLs
-- ARGV: 1 company, 2 ms to keep the version alone
-- Returns 1, or 0 when there is no certificate.
if redis.call('HDEL', KEYS[1], 'c') == 0 then
  return 0
end
redis.call('ZREM', KEYS[2], ARGV[1])
touch(KEYS[1])
if redis.call('EXISTS', KEYS[3]) == 0 then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
return 1
