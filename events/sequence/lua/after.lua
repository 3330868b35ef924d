-- Reads the events of a company after a number, from at most two blocks.
-- KEYS: 1 the partition's due set, 2 a key that never exists
-- ARGV: 1 key prefix, 2 company, 3 number after which to begin
-- Returns {number of the last event, number up to which the reply is complete, then for
--   each block: its number, its beginning in the index, its stubs, the ids of its events,
--   their headers, and the lengths of their values}.
local P, company = ARGV[1], ARGV[2]
check({P})
local numbers, index, event = P .. 'en:' .. company, P .. 'ei:' .. company, P .. 'e:' .. company .. ':'
local state = redis.call('HMGET', P .. 'c:' .. company, 'seq', 'first')
local last, first = tonumber(state[1] or 0), tonumber(state[2] or 0)
local from = tonumber(ARGV[3]) + 1
if from > last then return {last, last} end

local b = math.max(block_of(from), first)
local out = {last, 0}
for _ = 1, 2 do
  if b > block_of(last) then break end
  local found = redis.call('HMGET', numbers, b, b .. 'c', b + 1)
  if found[1] then
    local ids = redis.call('ZRANGEBYSCORE', index, found[1], found[3] and '(' .. found[3] or '+inf', 'LIMIT', 0, BLOCK)
    local headers, lengths = {}, {}
    for i, id in ipairs(ids) do
      local header = redis.pcall('GETRANGE', event .. id, 0, HEADER - 1)
      local damaged = type(header) ~= 'string'
      headers[i] = damaged and '' or header
      lengths[i] = damaged and 0 or redis.call('STRLEN', event .. id)
    end
    local n = #out
    out[n + 1], out[n + 2], out[n + 3], out[n + 4], out[n + 5], out[n + 6] = b, found[1], found[2] or '', ids, headers, lengths
  end
  b = b + 1
end
out[2] = math.min(last, b * BLOCK - 1)
return out
