-- Moves unreadable work from an owner's note to the quarantine.
-- KEYS: 1 the partition's due set, 2 a key that never exists
-- ARGV: 1 key prefix, 2 token of the owner, 3 company, 4 event id, 5 subscriber, '' for the
--   event itself
-- Returns the result of wake.
local P, token, company, id, sub = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
check({P})
local now = work_time(P)
if sub == '' then
  if redis.call('HDEL', P .. 'n:' .. token, company .. '/' .. id) == 1 then
    redis.call('ZADD', P .. 'quarantine', clock(), company .. '/' .. id)
    redis.call('HDEL', P .. 'suspects', company .. '/' .. id) -- a retry is a new beginning
  end
  return end_order(P, company, {id}, now)
end
local ref = reference(company, id, sub)
if redis.call('HDEL', P .. 'n:' .. token, ref) == 0 then return 0 end
redis.call('ZADD', P .. 'quarantine', clock(), ref)
release(P, company, sub, id)
return offer(P, company, sub, now)
