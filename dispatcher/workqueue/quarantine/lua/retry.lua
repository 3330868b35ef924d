-- Requeues what is in the quarantine, so that it is tried again: an event to the
-- ready queue of its company, a delivery to its endpoint queue. What has come to
-- its end meanwhile, or is under way, only leaves the quarantine, and so does a
-- subscriber, which is read again with the next work of its company.
-- KEYS: 1 the partition's due set, 2 a key that never exists
-- ARGV: 1 key prefix, 2 company, 3 event id, '' for the subscriber itself, 4
--   subscriber, '' for the event itself
-- Returns {1 when it was in the quarantine else 0, what wake does}.
local P, company, id, sub = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
check({P})
local member = company .. '/' .. id
if sub ~= '' then member = reference(company, id, sub) end
if redis.call('ZREM', P .. 'quarantine', member) == 0 then return {0, 0} end

if id == '' then return {1, 0} end
local now = clock()
if sub == '' then
  redis.call('RPUSH', P .. 'q:' .. company, '!' .. id)
  return {1, join(P, company, now)}
end
if in_flight(P, company, sub, id) then return {1, 0} end
return {1, put_back(P, company, sub, id, now, 0)}
