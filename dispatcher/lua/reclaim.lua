-- Hands out again what was open for so long that its task must be lost.
-- KEYS[1] open zset
-- ARGV[1] newest score that counts as lost, ARGV[2] now ms, ARGV[3] how many at most
-- Returns the references.
local lost = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', ARGV[1], 'LIMIT', 0, ARGV[3])
for _, ref in ipairs(lost) do
  redis.call('ZADD', KEYS[1], ARGV[2], ref)
end
return lost
