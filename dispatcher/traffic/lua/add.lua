#!lua
-- Adds to the counters of all companies, of one company or of one subscriber.
-- KEYS[1] by minute, KEYS[2] by hour, KEYS[3] most failed attempts in this hour, KEYS[4]
-- highest latencies in this hour, KEYS[5] the company's hash, which has the number of its
-- pending events
-- ARGV[1] unix time in s, ARGV[2] a random number in [0,1), ARGV[3..6] the four counts to
-- add, ARGV[7] the kind of the last two bytes: 'latency' (ARGV[8] median, ARGV[9] 95th
-- percentile, both encoded), 'pending' (from KEYS[5]) or 'number' (ARGV[8]; -1 means unknown);
-- then, for KEYS[3] and KEYS[4]: name, failed attempts and latency in turn
-- KEYS[1] and KEYS[2] hold rings: the number of the latest minute or hour, the random number of the last
-- call, then 10 bytes for each minute or hour. docs/redis.md describes these bytes. A call that is repeated
-- after a lost answer changes nothing, unless another call came between.
local CELL, HEAD, RANKED = 10, 12, 100
local random = tonumber(ARGV[2])
local call = struct.pack('<d', random)
if redis.call('GETRANGE', KEYS[1], 4, HEAD - 1) == call then return 1 end

local function decode(code)
  local exponent, rest = math.floor(code / 4096), code % 4096
  if exponent == 0 then
    return rest
  end
  return (4096 + rest) * 2 ^ (exponent - 1)
end

-- Numbers below 8,192 are exact. Larger ones are rounded up or down at random, in
-- proportion to the remainder, so that many small additions add up.
local function encode(n)
  local step = 1
  local exponent = 0
  if n >= 4096 then
    exponent = 1
    while n >= 8192 * step do
      exponent, step = exponent + 1, step * 2
    end
    n = math.floor(n / step + random)
    if n == 8192 then
      exponent, n = exponent + 1, 4096
    end
    n = n - 4096
  end
  if exponent > 15 then
    return 65535
  end
  return exponent * 4096 + n
end

-- put adds to the ring at key, which has size cells. at is the number of the current minute
-- or hour, life the seconds until the ring expires.
local function put(key, at, size, life)
  local head = redis.call('GETRANGE', key, 0, HEAD - 1)
  local latest = at
  if #head < HEAD then
    redis.call('SETRANGE', key, 0, string.rep('\0', HEAD + CELL * size))
  else
    latest = struct.unpack('<I4', head)
  end
  if at <= latest - size then
    return
  end
  for n = math.max(latest, at - size) + 1, at do
    redis.call('SETRANGE', key, HEAD + CELL * (n % size), string.rep('\0', CELL))
  end
  local place = HEAD + CELL * (at % size)
  local a, b, c, d, low, high = struct.unpack('<HHHHBB', redis.call('GETRANGE', key, place, place + CELL - 1))
  local counts, before, more = { decode(a), decode(b), decode(c), decode(d) }, 0, 0
  for i = 1, 4 do
    local n = tonumber(ARGV[2 + i])
    before, more = before + counts[i], more + n
    counts[i] = encode(counts[i] + n)
  end
  if ARGV[7] == 'latency' then
    local all = before + more
    low = math.min(255, math.floor((low * before + tonumber(ARGV[8]) * more) / all + random))
    high = math.min(255, math.floor((high * before + tonumber(ARGV[9]) * more) / all + random))
  else
    local n = ARGV[7] == 'number' and ARGV[8] or redis.call('HGET', KEYS[5], 'pending') or 0
    if tonumber(n) >= 0 then -- else unknown: the last number stays
      local code = encode(tonumber(n) + 1)
      low, high = code % 256, math.floor(code / 256)
    end
  end
  redis.call('SETRANGE', key, place, struct.pack('<HHHHBB', counts[1], counts[2], counts[3], counts[4], low, high))
  redis.call('SETRANGE', key, 0, struct.pack('<I4', math.max(at, latest)) .. call)
  redis.call('EXPIRE', key, life)
end

-- A replica with a clock far ahead must not clear the counts of the other replicas.
local now = math.min(tonumber(ARGV[1]), redis.call('TIME')[1] + 60)
put(KEYS[1], math.floor(now / 60), 180, 3 * 3600 + 60)
put(KEYS[2], math.floor(now / 3600), 168, 7 * 24 * 3600)
for i = 10, #ARGV, 3 do
  if ARGV[i + 1] ~= '0' then
    redis.call('ZINCRBY', KEYS[3], ARGV[i + 1], ARGV[i])
  end
  redis.call('ZADD', KEYS[4], ARGV[i + 2], ARGV[i])
end
if #ARGV > 9 then
  for _, key in ipairs({ KEYS[3], KEYS[4] }) do
    redis.call('ZREMRANGEBYRANK', key, 0, -RANKED - 1)
    redis.call('EXPIRE', key, 2 * 3600)
  end
end
return 1
