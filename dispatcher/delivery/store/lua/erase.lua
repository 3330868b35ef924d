-- Erases the payload of an event: the event becomes a compacted one. The script also deletes all
-- deliveries of the event with the answers of receivers, and the mark of a disabled subscriber.
-- KEYS: 1 the partition's due set, 2 a key that never exists
-- ARGV: 1 key prefix, 2 company, 3 event id, 4 now ms or '', 5 ms that an event is kept after it was
--   accepted, 6 which events may be erased: '' settled events; 'unreadable' also unreadable events
--   without a live delivery; 'quarantined' also events that are not matched, without their deliveries,
--   7 as ARGV 5 of record.lua
-- Returns ERASED; GONE when the event was compacted before; UNKNOWN when there is no event;
-- OPEN when the event may not be erased.
local P, company, id, now, which = ARGV[1], ARGV[2], ARGV[3], time_of(ARGV[4]), ARGV[6]
check({P})
for_history = tonumber(ARGV[7])
local event, deliveries = P .. 'e:' .. company .. ':' .. id, P .. 'd:' .. company .. '/' .. id
local value = redis.pcall('GET', event)
local fields = deliveries_of(P, company, id, value)
-- What is erased is erased in the history, too, and is not restored from it meanwhile.
local function erase_history()
  if for_history == 0 then return end
  archives(P, company, id, ERASED, now)
  redis.call('SET', P .. 'er:' .. company .. ':' .. id, '', 'PX', for_history)
end
if not value then
  erase_history()
  end_settling(now)
  return 'UNKNOWN'
end
if type(value) ~= 'string' then value = '' end
local state = string.match(value, HEAD) and string.match(value, '^[RMSC]')
if state == COMPACTED then
  erase_history()
  end_settling(now)
  return 'GONE'
end
local unreadable, dropped = not state or fields.err ~= nil, which == 'quarantined'
if unreadable and which == '' or not unreadable and state ~= SETTLED and not (dropped and state == READY) then return 'OPEN' end

local subs, records = {}, {}
for i = 1, #fields, 2 do
  local field, record = fields[i], fields[i + 1]
  if field == '#' then
    if tonumber(record) > 0 and state ~= READY then return 'OPEN' end
  elseif field ~= '!' and field ~= HELD then
    if not unreadable and not dropped and not finished(record) then return 'OPEN' end
    subs[#subs + 1] = field
    if not dropped then records[#records + 1] = record end
  end
end

compact_event(P, company, id, value, now, ARGV[5], records)
if not dropped or fields.err then
  redis.call('UNLINK', deliveries)
  for _, sub in ipairs(subs) do
    gather(P .. 'da:' .. company .. '/' .. sub, id, false)
    index_dead(P, company, id, sub, false)
  end
end
end_compacting(now)
erase_history()
if dropped and state ~= SETTLED then count_pending(P, company, -1) end
end_settling(now)
return 'ERASED'
