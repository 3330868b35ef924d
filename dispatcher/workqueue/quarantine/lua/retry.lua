-- Requeues an entry of the quarantine: an event to the ready queue of its company, a
-- delivery to its endpoint queue. A delivery that is finished or in flight is only removed
-- from the quarantine. So is a subscriber: the next work of its company reads it again.
-- KEYS: 1 the partition's due set, 2 a key that never exists
-- ARGV: 1 key prefix, 2 company, 3 event id, '' for the subscriber itself, 4
--   subscriber, '' for the event itself
-- Returns the result of wake; 0 when the entry is not in the quarantine.
local P, company, id, sub = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
check({P})
local member = company .. '/' .. id
if sub ~= '' then member = reference(company, id, sub) end
if redis.call('ZREM', P .. 'quarantine', member) == 0 then return 0 end

if id == '' then return 0 end
local now = work_time(P)
if sub == '' then
  redis.call('RPUSH', P .. 'q:' .. company, '!' .. id)
  return join(P, company, now)
end
if in_flight(P, company, sub, id) then return 0 end
return put_back(P, company, sub, id, now, 0)
