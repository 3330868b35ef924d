-- Reads a company's signing seed. If there is none, the script stores the new seed. It
-- stores nothing for a company without subscribers, so that requests for invented companies
-- use no memory.
-- KEYS: 1 company's seed, 2 company's subscribers
-- ARGV: 1 new seed, sealed
-- Returns the seed, or nil for a company with neither seed nor subscribers.
local seed = redis.call('GET', KEYS[1])
if not seed and redis.call('EXISTS', KEYS[2]) == 1 then
  seed = ARGV[1]
  redis.call('SET', KEYS[1], seed)
end
return seed
