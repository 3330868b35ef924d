-- Notes an encryption key, unless there is one that the caller does not have.
-- KEYS: 1 key id to a value sealed under it
-- ARGV: 1 current key id, 2 a value sealed under it, 3... all ids of the caller
-- Returns the values sealed under keys that the caller does not have; when it
-- has all of them, every value.
local mine, missing, all = {}, {}, {}
for i = 3, #ARGV do
  mine[ARGV[i]] = true
end
local known = redis.call('HGETALL', KEYS[1])
for i = 1, #known, 2 do
  table.insert(all, known[i + 1])
  if not mine[known[i]] then
    table.insert(missing, known[i + 1])
  end
end
if #missing > 0 then
  return missing
end
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then -- a full Redis refuses even a needless write
  redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
end
return all
