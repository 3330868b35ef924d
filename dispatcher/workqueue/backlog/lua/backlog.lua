-- Measures what waits in a partition: of its companies at most 100 whose turn
-- comes first, and of their endpoint queues the one whose turn comes first.
-- KEYS: 1 the partition's due set, 2 a key that never exists
-- ARGV: 1 key prefix
-- Returns {pending events, ms for which the oldest entry of the due set has waited,
--   entries of the quarantine, then company and ms for which its oldest work has
--   waited, of at most 100}. An endpoint queue has waited since it could be served:
--   before, its receiver, its rate or a pause held it.
local P = ARGV[1]
local now = clock()
local waited = 0
local due = redis.call('ZRANGE', P .. 'due', 0, 0, 'WITHSCORES')
if due[1] and due[1] ~= '' and due[1] ~= PASSED then waited = math.max(0, now - tonumber(due[2])) end
local out = {tonumber(redis.call('GET', P .. 'pending') or 0), waited, redis.call('ZCARD', P .. 'quarantine')}
for _, company in ipairs(redis.call('ZRANGE', P .. 'sched', 0, 99)) do
  local oldest = now
  local id = redis.call('LINDEX', P .. 'q:' .. company, 0)
  if id then
    local accepted = redis.pcall('GETRANGE', P .. 'e:' .. company .. ':' .. string.gsub(id, '^!', ''), 1, 13)
    if type(accepted) == 'string' then oldest = math.min(oldest, tonumber(accepted) or now) end
  end
  local turn = redis.call('ZRANGE', P .. 'dq:' .. company, 0, 0, 'WITHSCORES')
  if turn[2] then oldest = math.min(oldest, tonumber(turn[2])) end
  if oldest < now then out[#out + 1], out[#out + 2] = company, now - oldest end
end
return out
