-- Stamps lost open references anew, those that nobody has handed out or settled
-- since they were looked at.
-- KEYS[1] open zset
-- ARGV[1] now ms; then reference and the stamp it had, in turn
-- Returns the references that were stamped.
local out = {}
for i = 2, #ARGV, 2 do
  local stamp = redis.call('ZSCORE', KEYS[1], ARGV[i])
  if stamp and tonumber(stamp) == tonumber(ARGV[i + 1]) then
    redis.call('ZADD', KEYS[1], ARGV[1], ARGV[i])
    out[#out + 1] = ARGV[i]
  end
end
return out
