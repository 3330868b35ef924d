-- Replaces the value of a key if it is still the one that the caller knows. The expiry stays.
-- KEYS[1] an idempotency key
-- ARGV[1] the known value, ARGV[2] the new value, "" to delete the key
-- Returns 1 when replaced, also by an earlier call with this value, else 0.
local known = redis.call('GET', KEYS[1])
if known ~= ARGV[1] then
  return known == ARGV[2] and 1 or 0
end
if ARGV[2] == '' then
  redis.call('DEL', KEYS[1])
else
  redis.call('SET', KEYS[1], ARGV[2], 'KEEPTTL')
end
return 1
