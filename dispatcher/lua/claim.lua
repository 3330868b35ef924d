-- Hands out due references: they leave the delay lane and are open from now.
-- KEYS[1] delayed zset, KEYS[2] open zset
-- ARGV[1] now ms, ARGV[2] how many at most
-- Returns the references.
local due = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', ARGV[1], 'LIMIT', 0, ARGV[2])
for _, ref in ipairs(due) do
  redis.call('ZREM', KEYS[1], ref)
  redis.call('ZADD', KEYS[2], ARGV[1], ref)
end
return due
