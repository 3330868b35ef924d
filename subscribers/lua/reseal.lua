-- Replaces a field of a company's hash if it still has the value that the caller read. The
-- script raises the version, so that replicas read changed keys, and again what they could not decrypt.
-- KEYS: 1 company's subscribers
-- ARGV: 1 field, 2 value read, 3 value to write
-- Returns 1, also when the field has the new value already, or 0 when it has changed meanwhile.
local known = redis.call('HGET', KEYS[1], ARGV[1])
if known ~= ARGV[2] then
  return known == ARGV[3] and 1 or 0
end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
touch(KEYS[1])
return 1
