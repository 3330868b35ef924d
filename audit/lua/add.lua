-- Adds entries to the log, unless the log has them. Entries get increasing times, so that a reader that
-- continues after the last one that it read misses none.
-- KEYS: 1 the log
-- ARGV: entries
-- Returns the number of added entries.
local newest = redis.call('ZREVRANGE', KEYS[1], 0, 0, 'WITHSCORES')
local clock = redis.call('TIME')
local now, added = clock[1] * 1000000 + clock[2], 0
if newest[2] then now = math.max(now, newest[2] + 1) end
for _, entry in ipairs(ARGV) do
  if redis.call('ZADD', KEYS[1], 'NX', string.format('%.0f', now), entry) == 1 then
    now, added = now + 1, added + 1
  end
end
return added
