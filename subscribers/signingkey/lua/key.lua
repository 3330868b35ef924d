-- Reads a company's signing seed; the first call stores the one it brings.
-- Nothing is stored for a company without subscribers, so that asking for
-- made-up companies fills no memory.
-- KEYS: 1 company's seed, 2 company's subscribers
-- ARGV: 1 new seed, sealed
-- Returns the seed, or nil for a company that has neither.
local seed = redis.call('GET', KEYS[1])
if not seed and redis.call('EXISTS', KEYS[2]) == 1 then
  seed = ARGV[1]
  redis.call('SET', KEYS[1], seed)
end
return seed
