-- Requeues work that a replica has noted, so that others may claim it: all of
-- a lost replica's, a page at a time, or what a replica gives up itself.
-- KEYS: 1 the partition's due set, 2 a key that never exists
-- ARGV: 1 key prefix, 2 replica, 3 how many at most, 4 '1' to fence the replica
--   first: its claims are refused from then on; then the notes to requeue, none
--   meaning all
-- Returns {how many were requeued, notes left, 1 when a wake-up must be enqueued}.
local P, replica, most = ARGV[1], ARGV[2], tonumber(ARGV[3])
check({P})
local now = clock()
local note = P .. 'n:' .. replica
local wakes = 0

if ARGV[4] == '1' then
  redis.call('ZADD', P .. 'fenced', now, replica)
  redis.call('ZREMRANGEBYSCORE', P .. 'fenced', '-inf', now - 86400000)
end

local refs = {}
if #ARGV > 4 then
  for i = 5, #ARGV do refs[#refs + 1] = ARGV[i] end
else
  local cursor = '0'
  repeat
    local page = redis.call('HSCAN', note, cursor, 'COUNT', most)
    cursor = page[1]
    for i = 1, #page[2], 2 do refs[#refs + 1] = page[2][i] end
  until cursor == '0' or #refs >= most
end

local n = 0
for i = 1, math.min(#refs, most) do
  local ref = refs[i]
  if redis.call('HDEL', note, ref) == 1 then
    n = n + 1
    if string.sub(ref, 1, 2) == 'j:' then
      local company, job = string.match(ref, '^j:([^/]*)/(.*)$')
      redis.call('HDEL', P .. 'c:' .. company, 'job')
      redis.call('LPUSH', P .. 'jq:' .. company, job)
      wakes = wakes + join(P, company, now)
    else
      local company, id, sub = string.match(ref, '^([^/]*)/([^/]*)/?(.*)$')
      if sub == '' then
        local event = redis.pcall('GETRANGE', P .. 'e:' .. company .. ':' .. id, 0, 0)
        if event == 'R' then
          redis.call('LPUSH', P .. 'q:' .. company, '!' .. id)
          wakes = wakes + join(P, company, now)
        end
      else
        free(P, replica, company, sub, id)
        local record = redis.pcall('HGET', P .. 'd:' .. company .. '/' .. id, sub)
        local status = type(record) == 'string' and string.sub(record, 1, 1)
        if status == 'P' or status == 'R' then
          redis.call('ZADD', P .. 'eq:' .. company .. '/' .. sub, 'NX', now, id)
        end
        wakes = wakes + offer(P, company, sub, now)
      end
    end
  end
end
return {n, redis.call('HLEN', note), wakes > 0 and 1 or 0}
