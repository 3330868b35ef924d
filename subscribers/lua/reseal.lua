-- Replaces a field of a company's hash if it still is what the caller read.
-- The version moves on, so that no replica goes on with a copy it could not open.
-- KEYS: 1 company's subscribers
-- ARGV: 1 field, 2 value read, 3 value to write
-- Returns 1, or 0 when the field has changed meanwhile.
if redis.call('HGET', KEYS[1], ARGV[1]) ~= ARGV[2] then
  return 0
end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
touch(KEYS[1])
return 1
