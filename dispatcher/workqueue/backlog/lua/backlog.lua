-- Measures the waiting work of a partition. The script reads at most 100 companies, the
-- next in turn first, and of each company the endpoint queue that is next in turn. It leaves out
-- damaged keys of companies.
-- KEYS: 1 the partition's due set, 2 a key that never exists
-- ARGV: 1 key prefix
-- Returns {pending events, ms that the oldest entry of the due set has waited, entries of
--   the quarantine, then for at most 100 companies: company and ms that its oldest work has
--   waited}. The wait of an endpoint queue begins when it may be served: until then its
--   receiver, its rate or a pause delays it.
local P = ARGV[1]
local now = clock()
local waited = 0
local due = redis.call('ZRANGE', P .. 'due', 0, 0, 'WITHSCORES')
if due[1] and due[1] ~= '' and due[1] ~= PASSED then waited = math.max(0, now - tonumber(due[2])) end
local out = {tonumber(redis.call('GET', P .. 'pending') or 0), waited, redis.call('ZCARD', P .. 'quarantine')}
for _, company in ipairs(redis.call('ZRANGE', P .. 'sched', 0, 99)) do
  local oldest = now
  local id = redis.pcall('LINDEX', P .. 'q:' .. company, 0)
  if type(id) == 'string' then
    local accepted = redis.pcall('GETRANGE', P .. 'e:' .. company .. ':' .. string.gsub(id, '^!', ''), 1, 13)
    if type(accepted) == 'string' then oldest = math.min(oldest, tonumber(accepted) or now) end
  end
  local turn = redis.pcall('ZRANGE', P .. 'dq:' .. company, 0, 0, 'WITHSCORES')
  if turn[2] then oldest = math.min(oldest, tonumber(turn[2])) end
  if oldest < now then out[#out + 1], out[#out + 2] = company, now - oldest end
end
return out
