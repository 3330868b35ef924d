-- Notes what a former owner of a partition has finished of what it had begun, once the partition is given away.
-- KEYS: 1 the partition's due set, 2 a key that never exists
-- ARGV: 1 key prefix, 2 token of the former owner, 3 '1' when all is finished; then the events that it has finished
--   matching, <company>/<id>
-- Returns 0 when the partition is not given away yet, else 1.
local P, token = ARGV[1], ARGV[2]
check({P})
if redis.call('GET', P .. 'owner') == token then return 0 end
for i = 4, #ARGV do redis.call('SREM', P .. 'begun:' .. token, ARGV[i]) end
if ARGV[3] == '1' then
  redis.call('DEL', P .. 'begun:' .. token)
  redis.call('SREM', P .. 'handover', token)
end
return 1
