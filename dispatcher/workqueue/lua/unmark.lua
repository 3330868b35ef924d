-- Removes the marks of deliveries whose attempt an owner has not begun. If the partition has another owner by now, that one
-- is told to serve their endpoints.
-- KEYS: 1 the partition's due set, 2 a key that never exists
-- ARGV: 1 key prefix, 2 token of the owner, 3 company; then for each delivery its subscriber and event id
local P, token, company = ARGV[1], ARGV[2], ARGV[3]
check({P})
local former = redis.call('GET', P .. 'owner') ~= token
for i = 4, #ARGV, 2 do
  local marks = P .. 'ef:' .. company .. '/' .. ARGV[i]
  local mark = redis.call('HGET', marks, ARGV[i + 1])
  if mark and owner_of(mark) == token then redis.call('HDEL', marks, ARGV[i + 1]) end
  if former then tell(P, 'e:' .. company .. '/' .. ARGV[i]) end
end
