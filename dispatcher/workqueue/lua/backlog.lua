-- Measures what waits in a partition: of its companies at most 100 whose turn
-- comes first, and of their endpoint queues the one whose turn comes first.
-- KEYS: 1 the partition's due set, 2 a key that never exists
-- ARGV: 1 key prefix
-- Returns {pending events, ms for which the oldest due work has waited, entries of
--   the quarantine}.
local P = ARGV[1]
local now = clock()
local oldest = now
for _, company in ipairs(redis.call('ZRANGE', P .. 'sched', 0, 99)) do
  local id = redis.call('LINDEX', P .. 'q:' .. company, 0)
  if id then
    local accepted = redis.pcall('GETRANGE', P .. 'e:' .. company .. ':' .. string.gsub(id, '^!', ''), 1, 13)
    if type(accepted) == 'string' then oldest = math.min(oldest, tonumber(accepted) or now) end
  end
  local sub = redis.call('ZRANGE', P .. 'dq:' .. company, 0, 0)[1]
  if sub then
    local first = redis.call('ZRANGE', P .. 'eq:' .. company .. '/' .. sub, 0, 0, 'WITHSCORES')
    if first[2] then oldest = math.min(oldest, tonumber(first[2])) end
  end
end
local due = redis.call('ZRANGE', P .. 'due', 0, 0, 'WITHSCORES')
if due[1] and due[1] ~= '' and due[1] ~= PASSED then oldest = math.min(oldest, tonumber(due[2])) end
return {tonumber(redis.call('GET', P .. 'pending') or 0), now - oldest, redis.call('ZCARD', P .. 'quarantine')}
