-- Removes expired entries, and then the oldest beyond a number; at most 10,000 at a time.
-- KEYS: 1 the log
-- ARGV: 1 the time before which entries have expired (unix µs), 2 number of entries to keep
-- Returns {number of removed entries that had not expired, number of entries left}.
local expired = redis.call('ZCOUNT', KEYS[1], '-inf', '(' .. ARGV[1])
local all = redis.call('ZCARD', KEYS[1])
local removed = math.min(math.max(expired, all - ARGV[2]), 10000)
if removed > 0 then redis.call('ZREMRANGEBYRANK', KEYS[1], 0, removed - 1) end
return {math.max(removed - expired, 0), all - removed}
