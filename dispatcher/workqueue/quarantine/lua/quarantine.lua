-- Moves an event or a delivery that cannot be read to the quarantine.
-- KEYS: 1 the partition's due set, 2 a key that never exists
-- ARGV: 1 key prefix, 2 company, 3 event id, 4 subscriber, '' for the event itself
local P, company, id, sub = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
check({P})
if sub == '' then
  redis.call('ZADD', P .. 'quarantine', 'NX', clock(), company .. '/' .. id)
  redis.call('ZREM', P .. 'due', 'm:' .. company .. '/' .. id)
  redis.call('HDEL', P .. 'suspects', company .. '/' .. id) -- a retry is a new beginning
else
  redis.call('ZADD', P .. 'quarantine', 'NX', clock(), reference(company, id, sub))
  local endpoint = company .. '/' .. sub
  leaves(P, endpoint, id)
  redis.call('ZREM', P .. 'eq:' .. endpoint, id)
  if redis.call('EXISTS', P .. 'eq:' .. endpoint) == 0 then redis.call('ZREM', P .. 'due', 'e:' .. endpoint) end
  redis.call('HDEL', P .. 'ef:' .. endpoint, id)
  next_in_line(P, company, sub, id)
end
