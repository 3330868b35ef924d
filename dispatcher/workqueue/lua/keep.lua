-- Keeps what the owner of a partition knows of companies, for the next owner.
-- KEYS: 1 the partition's due set, 2 a key that never exists
-- ARGV: 1 key prefix, 2 token of the owner, 3 run id of the server from which the owner has read the partition; then for each company: id, cursor, average deliveries of an event, number of
--   ids, number of endpoints, ids of events that were matched again, and for each endpoint with a rate its subscriber and
--   ms until its next delivery
-- Returns 0 when the partition has another owner, or the server has been replaced and may have forgotten writes; else 1.
local P, token = ARGV[1], ARGV[2]
check({P})
if redis.call('GET', P .. 'owner') ~= token then return 0 end
if ARGV[3] ~= '' and not string.find(redis.call('INFO', 'server'), 'run_id:' .. ARGV[3], 1, true) then return 0 end
local now = work_time(P)

local function keep(a)
  local company, cursor, state = ARGV[a], ARGV[a + 1], P .. 'c:' .. ARGV[a]
  local ids, endpoints = tonumber(ARGV[a + 3]), tonumber(ARGV[a + 4])
  for i = a + 5, a + 4 + ids do redis.call('ZREM', P .. 'due', 'm:' .. company .. '/' .. ARGV[i]) end
  for i = a + 5 + ids, a + 4 + ids + 2 * endpoints, 2 do
    redis.call('HSET', P .. 'es:' .. company .. '/' .. ARGV[i], 'tat', now + ARGV[i + 1])
  end
  redis.call('HSET', state, 'cursor', cursor, 'cost', ARGV[a + 2])
  if tonumber(redis.call('HGET', state, 'at') or 0) <= tonumber(cursor) then redis.call('SREM', P .. 'active', company) end
end

local a = 4
while a <= #ARGV do
  pcall(keep, a) -- a damaged key: the next owner matches the events again
  a = a + 5 + ARGV[a + 3] + 2 * ARGV[a + 4]
end
return 1
