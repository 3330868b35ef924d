-- Replaces the value of a key if it is still the one that the caller knows. The expiry stays.
-- KEYS[1] an idempotency key
-- ARGV[1] the known value, ARGV[2] the new value, "" to delete the key
-- Returns 1 when replaced, else 0.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 0
end
if ARGV[2] == '' then
  redis.call('DEL', KEYS[1])
else
  redis.call('SET', KEYS[1], ARGV[2], 'KEEPTTL')
end
return 1
