-- Gives a partition another owner, if its owner is the one that the caller saw. A repeated call
-- changes nothing.
-- KEYS: 1 the partition's due set, 2 a key that never exists
-- ARGV: 1 key prefix, 2 token of the owner that the caller saw, '' for none, 3 token of the new
--   owner, '' for none, 4 '1' when the former owner finishes what it has begun; then the events that it is
--   matching, <company>/<id>
-- Returns the token of the owner now ('' for none), and the tokens of former owners that still work.
local P, seen, token = ARGV[1], ARGV[2], ARGV[3]
check({P})
local owner = redis.call('GET', P .. 'owner') or ''
if owner == seen and owner ~= token then
  if owner ~= '' and ARGV[4] == '1' then
    redis.call('SADD', P .. 'handover', owner)
    for i = 5, #ARGV do redis.call('SADD', P .. 'begun:' .. owner, ARGV[i]) end
  end
  if token == '' then redis.call('DEL', P .. 'owner') else redis.call('SET', P .. 'owner', token) end
  owner = token
end
return {owner, unpack(redis.call('SMEMBERS', P .. 'handover'))}
