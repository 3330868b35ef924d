-- Moves what became due into the turns of its companies: endpoint queues and
-- jobs. A wake-up that nobody served is put off, so that only this caller
-- serves it.
-- KEYS: 1 the partition's due set, 2 a key that never exists
-- ARGV: 1 key prefix, 2 how many at most
-- Returns 1 when the partition has work to claim for which nobody else is coming.
local P = ARGV[1]
check({P})
local now = clock()
local wakes = 0
for _, member in ipairs(redis.call('ZRANGEBYSCORE', P .. 'due', '-inf', now, 'LIMIT', 0, ARGV[2])) do
  local kind, company, rest = string.match(member, '^(%a):([^/]*)/(.*)$')
  if not kind then
    redis.call('ZADD', P .. 'due', now + WAKE_MS, member)
    wakes = wakes + 1
  else
    redis.call('ZREM', P .. 'due', member)
    if kind == 'e' then
      wakes = wakes + offer(P, company, rest, now)
    else
      redis.call('RPUSH', P .. 'jq:' .. company, rest)
      wakes = wakes + join(P, company, now)
    end
  end
end
return wakes > 0 and 1 or 0
