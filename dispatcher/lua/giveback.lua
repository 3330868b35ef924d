-- Makes open references due at once, for whoever comes next. What is not open
-- any more was settled, and stays so.
-- KEYS[1] open zset, KEYS[2] delayed zset
-- ARGV[1] now ms, ARGV[2..] references
-- Returns how many were given back.
local n = 0
for i = 2, #ARGV do
  if redis.call('ZREM', KEYS[1], ARGV[i]) == 1 then
    redis.call('ZADD', KEYS[2], ARGV[1], ARGV[i])
    n = n + 1
  end
end
return n
