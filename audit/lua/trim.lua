-- Removes expired entries, and then the oldest beyond a number; at most 10,000 at a time.
-- KEYS: 1 the log
-- ARGV: 1 the time (unix µs), '' for Redis's time, 2 µs that an entry is kept, 3 number of entries to keep
-- Returns {number of removed entries that had not expired, number of entries left}.
local clock = redis.call('TIME')
local now = tonumber(ARGV[1]) or clock[1] * 1000000 + clock[2]
local expired = redis.call('ZCOUNT', KEYS[1], '-inf', string.format('(%.0f', now - ARGV[2]))
local all = redis.call('ZCARD', KEYS[1])
local removed = math.min(math.max(expired, all - ARGV[3]), 10000)
if removed > 0 then redis.call('ZREMRANGEBYRANK', KEYS[1], 0, removed - 1) end
return {math.max(removed - expired, 0), all - removed}
