-- Replaces a company's signing seed if it still has the value that the caller read.
-- KEYS: 1 company's seed
-- ARGV: 1 value read, 2 value to write
-- Returns 1, or 0 when the seed has changed meanwhile.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 0
end
redis.call('SET', KEYS[1], ARGV[2], 'KEEPTTL')
return 1
