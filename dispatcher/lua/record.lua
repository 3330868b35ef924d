-- Writes what became of deliveries of one event, each by compare-and-set on
-- its version, and moves them between the indexes their status belongs in.
-- KEYS[1] deliveries hash, [2] open, [3] delayed, [4] dead, [5] event string,
--   [6] the company's live and [7] dead index; then for each delivery its
--   subscriber's all, live and dead index
-- ARGV[1] event reference, [2] event id, [3] '1' when the event's dispatch is
--   settled, [4] now ms, [5] retention ms, [6] dead retention ms; then for each
--   delivery: subscriber uuid, expected version ('' for none), new record,
--   created ms, due ms ('' for none)
-- Returns for each delivery 1, or the record found when its version differs.
local eref, id, now = ARGV[1], ARGV[2], ARGV[4]
local keep, keepDead = tonumber(ARGV[5]), tonumber(ARGV[6])

local function atLeast(key, ms)
  if redis.call('PTTL', key) < ms then redis.call('PEXPIRE', key, ms) end
end

-- A sorted set whose old members go, a few at each write, and which expires
-- when nothing is written any more.
local function index(key, score, member, ms)
  redis.call('ZADD', key, score, member)
  local old = redis.call('ZRANGEBYSCORE', key, '-inf', now - ms, 'LIMIT', 0, 4)
  if #old > 0 then redis.call('ZREM', key, unpack(old)) end
  redis.call('PEXPIRE', key, ms)
end

local out = {}
local n = (#ARGV - 6) / 5
for i = 1, n do
  local a, k = 6 + (i - 1) * 5, 7 + (i - 1) * 3
  local sub, expected, record, created, due = ARGV[a + 1], ARGV[a + 2], ARGV[a + 3], ARGV[a + 4], ARGV[a + 5]
  local all, live, dead = KEYS[k + 1], KEYS[k + 2], KEYS[k + 3]
  local dref, cref = eref .. '/' .. sub, id .. '/' .. sub

  local found = redis.call('HGET', KEYS[1], sub)
  local version = found and string.sub(found, 2, string.find(found, '|', 1, true) - 1) or ''
  if version ~= expected then
    out[i] = found or ''
  else
    out[i] = 1
    local was, is = found and string.sub(found, 1, 1), string.sub(record, 1, 1)
    redis.call('HSET', KEYS[1], sub, record)
    if not found then
      index(all, created, id, keep)
      atLeast(KEYS[1], keep)
    end
    if is == 'P' or is == 'R' then
      if was ~= 'P' and was ~= 'R' and was ~= 'A' then
        index(live, created, id, keepDead)
        index(KEYS[6], created, cref, keepDead)
      end
      if found then redis.call('ZREM', KEYS[2], dref) end
      if due ~= '' then
        redis.call('ZADD', KEYS[3], due, dref)
      else
        redis.call('ZREM', KEYS[3], dref)
      end
      atLeast(KEYS[1], keepDead)
      atLeast(KEYS[5], keepDead)
    elseif found then
      redis.call('ZREM', KEYS[2], dref)
      redis.call('ZREM', KEYS[3], dref)
      redis.call('ZREM', live, id)
      redis.call('ZREM', KEYS[6], cref)
    end
    if was == 'X' and is ~= 'X' then
      redis.call('ZREM', dead, id)
      redis.call('ZREM', KEYS[7], cref)
      redis.call('ZREM', KEYS[4], dref)
    elseif is == 'X' then
      index(dead, now, id, keepDead)
      index(KEYS[7], now, cref, keepDead)
      redis.call('ZADD', KEYS[4], now, dref)
      atLeast(KEYS[1], keepDead)
      atLeast(KEYS[5], keepDead)
    end
  end
end
if ARGV[3] == '1' then
  redis.call('ZREM', KEYS[2], eref)
  redis.call('ZREM', KEYS[3], eref)
end
return out
