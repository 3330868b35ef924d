-- Writes what became of deliveries, each by compare-and-set on its version,
-- moves them between the indexes their status belongs in, and moves their work.
-- KEYS: 1 a partition's due set, 2 a key that never exists
-- ARGV: 1 now ms, 2 ms that a delivery is kept, 3 ms that a dead one is kept, 4 ms
--   that an event is kept after it was accepted, 5 replica, 6 pause of a breaker
--   in ms, 7 unreachable attempts in a row that open it, 8 number of events; then
--   for each event: key prefix, company, id, what settle takes of its matching,
--   number of changes; and for each of its changes: subscriber, expected version
--   ('' for none), record, created ms, ms until it is due ('' for never), flags,
--   ms for which its endpoint is not served ('' for none), the notice of its death
--   ('' for none)
-- Flags: c it was claimed from its endpoint queue, s the endpoint was reached, u it
--   was not, o its breaker is open, b the delivery is backlog, g leave it when an
--   attempt is under way
-- Returns the key prefixes of partitions that need a wake-up; then for each
-- change 1, or 0 for an attempt under way, or -1 when the event is compacted, or
-- the record found when its version differs.
local now, keep, keep_dead, keep_event = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local replica, breaker_pause, trips = ARGV[5], tonumber(ARGV[6]), tonumber(ARGV[7])
local t = clock()
local LIVE = {P = true, R = true}

local prefixes, at = {}, 9
for e = 1, tonumber(ARGV[8]) do
  prefixes[e] = ARGV[at]
  at = at + 5 + 8 * ARGV[at + 4]
end
check(prefixes)

-- index adds to a sorted set whose old members go, a few at each write, and
-- which expires when nothing is written any more.
local function index(key, score, member, ms)
  redis.call('ZADD', key, score, member)
  local old = redis.call('ZRANGEBYSCORE', key, '-inf', now - ms, 'LIMIT', 0, 4)
  if #old > 0 then redis.call('ZREM', key, unpack(old)) end
  redis.call('PEXPIRE', key, ms)
end

-- reindex moves a delivery between the indexes of what is live and what is dead.
-- What is live stays so for any time, so its indexes neither expire nor are trimmed.
local function reindex(P, company, sub, id, was, is, created)
  local of_sub, both = company .. '/' .. sub, id .. '/' .. sub
  if LIVE[is] and not LIVE[was] then
    redis.call('ZADD', P .. 'dl:' .. of_sub, created, id)
    redis.call('ZADD', P .. 'cl:' .. company, created, both)
  elseif LIVE[was] and not LIVE[is] then
    redis.call('ZREM', P .. 'dl:' .. of_sub, id)
    redis.call('ZREM', P .. 'cl:' .. company, both)
  end
  if was == 'X' and is ~= 'X' then
    redis.call('ZREM', P .. 'dd:' .. of_sub, id)
    redis.call('ZREM', P .. 'cd:' .. company, both)
    redis.call('ZREM', P .. 'dead', company .. '/' .. both)
  elseif is == 'X' then
    index(P .. 'dd:' .. of_sub, now, id, keep_dead)
    index(P .. 'cd:' .. company, now, both, keep_dead)
    redis.call('ZADD', P .. 'dead', now, company .. '/' .. both)
  end
end

-- learn keeps what an attempt told of an endpoint that has a queue.
local function learn(P, company, sub, flags, ms)
  local state = P .. 'es:' .. company .. '/' .. sub
  local untl = 0
  if string.find(flags, 'u', 1, true) then
    if redis.call('HINCRBY', state, 'fails', 1) >= trips then untl = t + breaker_pause end
  elseif string.find(flags, 's', 1, true) then
    redis.call('HDEL', state, 'fails')
  elseif string.find(flags, 'o', 1, true) then
    redis.call('HSET', state, 'fails', trips)
  end
  if ms ~= '' then untl = math.max(untl, t + ms) end
  if untl > 0 then
    local known = tonumber(redis.call('HGET', state, 'until') or 0)
    if untl > known then redis.call('HSET', state, 'until', untl) end
  end
end

local out = {0}
local a = 9
for e = 1, tonumber(ARGV[8]) do
  local P, company, id, matched, changes = ARGV[a], ARGV[a + 1], ARGV[a + 2], ARGV[a + 3], tonumber(ARGV[a + 4])
  a = a + 5
  local key, event = P .. 'd:' .. company .. '/' .. id, P .. 'e:' .. company .. ':' .. id
  local opened, dead = 0, false
  for _ = 1, changes do
    local sub, expected, record, created = ARGV[a], ARGV[a + 1], ARGV[a + 2], ARGV[a + 3]
    local due, flags, ms, death = ARGV[a + 4], ARGV[a + 5], ARGV[a + 6], ARGV[a + 7]
    a = a + 8
    local claimed = string.find(flags, 'c', 1, true)
    local ended = claimed and free(P, replica, company, sub, id, expected)
    local offered = not ended
    if ended or not claimed then learn(P, company, sub, flags, ms) end
    local found = redis.call('HGET', key, sub)
    if version_of(found) ~= expected then
      out[#out + 1] = found or ''
      if ended and found and not finished(found) then -- the caller may never come back, or it is damaged
        wakes(P, put(P, company, sub, id, t, t))
        offered = true
      end
    elseif expected == '' and redis.pcall('GETRANGE', event, 0, 0) == COMPACTED then
      out[#out + 1] = -1
    elseif string.find(flags, 'g', 1, true) and in_flight(P, company, sub, id) then
      out[#out + 1] = 0
    else
      out[#out + 1] = 1
      local was, is = found and string.sub(found, 1, 1), string.sub(record, 1, 1)
      redis.call('HSET', key, sub, record)
      if not found then index(P .. 'da:' .. company .. '/' .. sub, created, id, keep) end
      reindex(P, company, sub, id, was, is, created)
      if LIVE[is] and not LIVE[was] then opened = opened + 1 end
      if LIVE[was] and not LIVE[is] then opened = opened - 1 end
      dead = dead or is == 'X'
      if is == 'X' and was ~= 'X' then
        wakes(P, notice(P, company, sub, death, now))
        if redis.call('HGET', P .. 'es:' .. company .. '/' .. sub, 'ondead') then pause(P, company, sub, 'DEAD', t) end
      end
      if LIVE[is] and due ~= '' then
        -- One that somebody else is attempting is queued by its outcome.
        if ended or not found or not in_flight(P, company, sub, id) then
          if string.find(flags, 'b', 1, true) then redis.call('SADD', P .. 'bl:' .. company, sub) end
          wakes(P, put(P, company, sub, id, t + due, t))
          offered = true
        end
      elseif LIVE[was] and not ended then
        take_out(P, company, sub, id)
      end
    end
    if not offered then wakes(P, offer(P, company, sub, t)) end
  end
  count_pending(P, company, settle(P, replica, company, id, matched, opened, dead, now, keep, keep_dead, keep_event))
end
out[1] = end_settling(now)
return out
