-- Notes that the matching of a suspect begins: of an event that a lost replica had in flight.
-- KEYS: 1 the partition's due set, 2 a key that never exists
-- ARGV: 1 key prefix, 2 token under which the event is noted, 3 company, 4 event id
-- Returns under how many other tokens its matching began and did not end.
local P, token, ref = ARGV[1], ARGV[2], ARGV[3] .. '/' .. ARGV[4]
check({P})
local n, last = string.match(redis.call('HGET', P .. 'suspects', ref) or '', '^(%d+) (.*)$')
n = tonumber(n or 0)
if last ~= token then -- a repeated call counts once
  n = n + 1
  redis.call('HSET', P .. 'suspects', ref, n .. ' ' .. token)
end
return n - 1
