-- Leases tokens of a bucket, as many as there are up to the wanted and none when
-- there are fewer than needed, or gives tokens back. The state is one number:
-- when the bucket is full again (GCRA's theoretical arrival time).
-- KEYS: 1 bucket
-- ARGV: 1 µs in which one token comes, 2 tokens of a full bucket,
--       3 tokens needed, negative to give back, 4 tokens wanted
-- Returns {leased, µs until the bucket is full, µs until all wanted are there}.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local cost, burst, need, want = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])

-- No further ahead than an empty bucket: a clock that was set back, or a limit
-- that was made smaller, must shut nobody out.
local stored = tonumber(redis.call('GET', KEYS[1]) or 0)
local full = math.min(math.max(stored, now), now + burst * cost)

-- The little that is added is for what division loses of a whole token.
local free = math.floor(burst - (full - now) / cost + 1e-6)
local leased = 0
if need < 0 then
  leased = need
elseif free >= need then
  leased = math.min(want, free)
end
full = math.max(now, math.ceil(full + leased * cost))
if full > now then
  local left = math.ceil((full - now) / 1000) + 1000
  redis.call('SET', KEYS[1], string.format('%.0f', full), 'PX', string.format('%.0f', left))
else
  redis.call('DEL', KEYS[1])
end
local missing = math.max(0, full - now - (burst - want) * cost)
return {leased, full - now, math.ceil(missing)}
