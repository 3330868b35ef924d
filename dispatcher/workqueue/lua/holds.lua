-- Returns 1 when a delivery is marked as in flight under a token, and its owner still owns the partition.
-- KEYS: 1 the partition's due set, 2 a key that never exists
-- ARGV: 1 key prefix, 2 token of the owner, 3 company, 4 subscriber, 5 event id
local P, token = ARGV[1], ARGV[2]
local mark = redis.call('HGET', P .. 'ef:' .. ARGV[3] .. '/' .. ARGV[4], ARGV[5])
return mark and owner_of(mark) == token and redis.call('GET', P .. 'owner') == token and 1 or 0
