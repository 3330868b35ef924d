-- Writes an event of the history into Redis again, as it was when it settled, so that its deliveries can be repeated. An
-- event that Redis keeps, compacted events excepted, is not changed, and one that was erased is not written.
-- KEYS: 1 the partition's due set, 2 a key that never exists
-- ARGV: 1 key prefix, 2 company, 3 event id, 4 value, 5 now ms or '', 6 ms that an event is kept after it was accepted,
--   7 ms that the event is kept at least, 8 ms that a dead delivery is kept; then for each delivery: subscriber, record, and time
--   of death, '' when it is not dead
-- Returns 1 when the event was written.
local P, company, id, value, now = ARGV[1], ARGV[2], ARGV[3], ARGV[4], time_of(ARGV[5])
check({P})
local event, deliveries = P .. 'e:' .. company .. ':' .. id, P .. 'd:' .. company .. '/' .. id
local found = redis.pcall('GETRANGE', event, 0, 21)
if redis.call('EXISTS', P .. 'er:' .. company .. ':' .. id) == 1 then return 0 end
if type(found) ~= 'string' or found ~= '' and found ~= COMPACTED .. string.sub(value, 2, 22) then return 0 end
local accepted, ms = tonumber(string.sub(value, 2, 14)), tonumber(ARGV[7])
local size = #value - HEADER + OVERHEAD - COMPACTED_BYTES + math.max((#ARGV - 8) / 3 - 1, 0) * DELIVERY_BYTES
for i = 9, #ARGV, 3 do
  local sub, record, died = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  size = size + longer(record)
  redis.call('HSET', deliveries, sub, record)
  if died ~= '' and died + ARGV[8] > now then
    ms = math.max(ms, tonumber(ARGV[8]))
    redis.call('HSET', deliveries, '!', died)
    index_dead(P, company, id, sub, tonumber(died), ms)
  end
end
flush(now)
ms = math.max(ms, accepted + ARGV[6] - now)
redis.call('SET', event, value, 'PX', ms)
redis.call('PEXPIRE', deliveries, ms)
add_bytes(P, company, hour_of(accepted), size)
return 1
