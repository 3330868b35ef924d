-- Replaces the value of a key if it is still the one that the caller knows.
-- KEYS[1] an idempotency key
-- ARGV[1] the known value, ARGV[2] the new value, "" to delete the key, ARGV[3] ms until the key
-- expires, 0 to keep its expiry. Without 0, the script also writes a key that has expired.
-- Returns 1 when replaced, else 0.
local value = redis.call('GET', KEYS[1])
if value ~= ARGV[1] and (value or ARGV[3] == '0') then
  return 0
end
if ARGV[2] == '' then
  redis.call('DEL', KEYS[1])
elseif ARGV[3] == '0' then
  redis.call('SET', KEYS[1], ARGV[2], 'KEEPTTL')
else
  redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
end
return 1
