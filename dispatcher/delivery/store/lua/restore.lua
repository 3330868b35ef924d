-- Writes an event of the history into Redis again, as it was when it settled, so that its deliveries can be repeated. An
-- event that Redis keeps, compacted events excepted, is not changed, and one that was erased is not written. It counts in
-- the company's share by its hour, or if that ends sooner for one to two hours.
-- KEYS: 1 the partition's due set, 2 a key that never exists
-- ARGV: 1 key prefix, 2 company, 3 event id, 4 value, 5 now ms or '', 6 ms that an event is kept after it was accepted,
--   7 ms that the event is kept at least, 8 ms that a dead delivery is kept, 9 free bytes below the high-water mark; then for
--   each delivery: subscriber, record, and time of death, '' when it is not dead
-- Returns 1 when the event was written, -1 when it is more than the company may store.
local P, company, id, value, now = ARGV[1], ARGV[2], ARGV[3], ARGV[4], time_of(ARGV[5])
check({P})
local event, deliveries = P .. 'e:' .. company .. ':' .. id, P .. 'd:' .. company .. '/' .. id
local found = redis.pcall('GETRANGE', event, 0, 21)
if redis.call('EXISTS', P .. 'er:' .. company .. ':' .. id) == 1 then return 0 end
if type(found) ~= 'string' or found ~= '' and found ~= COMPACTED .. string.sub(value, 2, 22) then return 0 end
local accepted, ms = tonumber(string.sub(value, 2, 14)), tonumber(ARGV[7])
local size = #value - HEADER + OVERHEAD - (found ~= '' and COMPACTED_BYTES or 0) + math.max((#ARGV - 9) / 3 - 1, 0) * DELIVERY_BYTES
for i = 10, #ARGV, 3 do size = size + longer(ARGV[i + 1]) end
local retention, free, state = ARGV[6] - GRACE, tonumber(ARGV[9]), P .. 'c:' .. company
local counts = redis.call('HMGET', state, 'bytes', 'answers')
if (counts[1] or 0) + (counts[2] or 0) + 2 * size > free and recount(P, company, now, retention, retention + GRACE) + 2 * size > free then return -1 end
for i = 10, #ARGV, 3 do
  local sub, record, died = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  redis.call('HSET', deliveries, sub, record)
  if died ~= '' and died + ARGV[8] > now then
    ms = math.max(ms, tonumber(ARGV[8]))
    redis.call('HSET', deliveries, '!', died)
    index_dead(P, company, id, sub, tonumber(died), ms)
  end
end
redis.call('PEXPIRE', deliveries, ms)
flush(now)
local hour = math.max(hour_of(accepted), hour_of(now - retention) + 1)
redis.call('HINCRBY', state, 'bytes', size)
if redis.call('HINCRBY', P .. 'cb:' .. company, hour, size) == size then recount(P, company, now, retention, retention + GRACE) end
ms = math.max(ms, accepted + ARGV[6] - now)
redis.call('SET', event, value, 'PX', ms)
redis.call('PEXPIRE', deliveries, ms)
return 1
