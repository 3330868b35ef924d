-- Leases tokens of a bucket: as many as are free, up to the number wanted, and none when
-- fewer than the number needed are free. With a negative number it returns tokens to the
-- bucket. The state is the time when the bucket is full again (GCRA's theoretical arrival
-- time), then name and result of the last call: a call that is repeated
-- after a lost answer changes nothing, unless another call came between.
-- KEYS: 1 bucket
-- ARGV: 1 µs per token, 2 tokens of a full bucket,
--       3 tokens needed, negative to return tokens, 4 tokens wanted, 5 name of the call
-- Returns {leased, µs until the bucket is full, µs until all wanted tokens are free}.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local cost, burst, need, want = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])

-- Limit the stored time to that of an empty bucket: after a clock was set back, or the
-- limit was reduced, callers must not be refused for longer.
local stored, last, result = string.match(redis.call('GET', KEYS[1]) or '', '^(%d+) (%w+) (%-?%d+)$')
local full = math.min(math.max(tonumber(stored or 0), now), now + burst * cost)

-- The small addend corrects rounding errors of the division, which could lose a whole
-- token.
local free = math.floor(burst - (full - now) / cost + 1e-6)
local leased = 0
if last == ARGV[5] then
  leased = tonumber(result)
else
  if need < 0 then
    leased = need
  elseif free >= need then
    leased = math.min(want, free)
  end
  full = math.max(now, math.ceil(full + leased * cost))
  if full > now then
    local left = math.ceil((full - now) / 1000) + 1000
    redis.call('SET', KEYS[1], string.format('%.0f %s %d', full, ARGV[5], leased), 'PX', string.format('%.0f', left))
  else
    redis.call('DEL', KEYS[1])
  end
end
local missing = math.max(0, full - now - (burst - want) * cost)
return {leased, full - now, math.ceil(missing)}
