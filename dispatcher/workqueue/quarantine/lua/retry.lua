-- Takes an entry out of the quarantine: the owner of the partition matches an event again, or attempts a delivery.
-- A delivery that is finished or in flight is only removed from the quarantine. So is a subscriber: the next work of
-- its company reads it again.
-- KEYS: 1 the partition's due set, 2 a key that never exists
-- ARGV: 1 key prefix, 2 company, 3 event id, '' for the subscriber itself, 4
--   subscriber, '' for the event itself
-- Returns 1 when the owner is to be woken; 0 also when the entry is not in the quarantine.
local P, company, id, sub = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
check({P})
local member = company .. '/' .. id
if sub ~= '' then member = reference(company, id, sub) end
if not redis.call('ZSCORE', P .. 'quarantine', member) then return 0 end
local woken = 0
if id ~= '' and sub == '' then
  redis.call('ZADD', P .. 'due', 0, 'm:' .. member)
  woken = tell(P, 'm:' .. member)
elseif id ~= '' then
  local record = redis.pcall('HGET', P .. 'd:' .. company .. '/' .. id, sub)
  local settled = not record and redis.pcall('GETRANGE', P .. 'e:' .. company .. ':' .. id, 0, 0) == 'S' -- has the records
  if not (finished(record) or settled or in_flight(P, company, sub, id)) then
    put(P, company, sub, {id, work_time(P), order_key(record) or false})
    woken = tell(P, 'e:' .. company .. '/' .. sub)
  end
end
redis.call('ZREM', P .. 'quarantine', member) -- last: a call that fails half-way can be repeated
return woken
