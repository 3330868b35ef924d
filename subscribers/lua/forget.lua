-- Removes the signing keys of a company without subscribers.
-- KEYS: 1 company's subscribers, 2 company's URLs
-- ARGV: 1 the field of the keys
if redis.call('EXISTS', KEYS[2]) == 0 and redis.call('HDEL', KEYS[1], ARGV[1]) == 1 then touch(KEYS[1]) end
return 0
