-- Stores a value sealed under the caller's current encryption key, unless Redis has a value
-- sealed under a key that the caller lacks.
-- KEYS: 1 key id to a value sealed under the key
-- ARGV: 1 current key id, 2 a value sealed under it, 3... all key ids of the caller
-- Returns the values sealed under keys that the caller lacks; when the caller has all keys,
-- every value.
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
-- A full Redis refuses every write, so the script writes only a missing value.
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then
  redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
end
return all
