-- Functions for all scripts that write to a partition. P is its key prefix. docs/redis.md lists the keys.

-- reference returns the name of a delivery.
local function reference(company, id, sub) return company .. '/' .. id .. '/' .. sub end

-- finished reports whether a delivery needs no attempt any more, by its record. A damaged one does: the
-- owner of the partition quarantines it.
local function finished(record)
  return type(record) == 'string' and string.find(record, '^[DXC]%d+|') ~= nil
end

local function clock()
  local t = redis.call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end

-- time_of returns the time that a caller gives in ms, or Redis's time for ''. Only tests give one: the
-- clock of a replica must not decide when something is removed.
local function time_of(ms) return tonumber(ms) or clock() end

-- work_time returns the time of a partition's work, in ms: all that is due at a time is stored and compared by
-- it. It is Redis's time, but does not go back when that does, as after a failover to a server whose clock is
-- behind: the work would wait for as long. It then runs slower by a tenth, until it is Redis's time again. A
-- script that only reads does not note the time.
local NOTED_MS = 1000 -- the time is noted this often
local times = {}
local function work_time(P, reads)
  if times[P] then return times[P] end
  local noted = redis.call('HMGET', P .. 'clock', 'last', 'ahead')
  local now, last, ahead = clock(), tonumber(noted[1] or 0), tonumber(noted[2] or 0)
  local passed = now + ahead - last
  ahead = math.max(0, ahead - (passed < 0 and passed or math.floor(passed / 10)))
  if not reads and (passed < 0 or passed >= NOTED_MS) then redis.call('HSET', P .. 'clock', 'last', now + ahead, 'ahead', ahead) end
  times[P] = now + ahead
  return times[P]
end

-- tell tells the owner of a partition what has changed: 'c:<company>' has new events, 'e:<company>/<subscriber>'
-- or 'j:<company>/<job>' is to be served, 'm:<company>/<event id>' is to be matched again. The owner looks when it
-- is woken, and every half second.
local function tell(P, what) return redis.call('SADD', P .. 'told', what) end

-- The score of a delivery in a retry set is its due time. For an ordered subscriber the score is IN_ORDER plus the
-- event's number in the company. No time reaches IN_ORDER, so deliveries that were there before the subscriber was
-- ordered come first.
local IN_ORDER = 1e13

-- number_of returns the number of an event in its company; 0 without a readable event.
local function number_of(P, company, id)
  local digits = redis.pcall('GETRANGE', P .. 'e:' .. company .. ':' .. id, 22, 31)
  return type(digits) == 'string' and tonumber(digits, 16) or 0
end

-- owner_of returns the token in the mark of an attempt under way: <token> <number of the call that began it>.
local function owner_of(mark) return string.match(mark, '^(.*) %d+$') end

-- in_flight reports whether an attempt of a delivery of a retry set is under way. The mark of an owner that is lost
-- says nothing.
local function in_flight(P, company, sub, id)
  local mark = redis.call('HGET', P .. 'ef:' .. company .. '/' .. sub, id)
  local by = mark and owner_of(mark)
  return by and (by == redis.call('GET', P .. 'owner') or redis.call('SISMEMBER', P .. 'handover', by) == 1)
end

-- order_key returns what a delivery has in common with those that it must not overtake, by its record; nil: nothing.
local function order_key(record)
  return type(record) == 'string' and string.match(record, '^%u%d+|{"o":"([%w_-]+)"') or nil
end

-- Of the deliveries with one order key, the first has the score at which it is due, and those behind it BEHIND plus their
-- event's number: they are not served. The set ok:<endpoint>/<key> has all of them, the first with the score -1 and the
-- others with their number. The hash ok:<endpoint> has the key of each.
local BEHIND = 2e13

-- line_up adds a delivery to those with its order key, and notes its score in the retry set, and that of the one whose
-- place it takes, in scores.
local function line_up(P, company, sub, id, at, key, scores)
  local e = company .. '/' .. sub
  local same, number = P .. 'ok:' .. e .. '/' .. key, number_of(P, company, id)
  local first = redis.call('ZRANGE', same, 0, 0)[1]
  redis.call('HSET', P .. 'ok:' .. e, id, key)
  if first and first ~= id then
    local before = number_of(P, company, first)
    local score = scores[first] or redis.call('ZSCORE', P .. 'eq:' .. e, first) -- nil: it has ended, and leaves in this call
    local due = tonumber(score or 0)
    if before < number or due > work_time(P) or in_flight(P, company, sub, first) then
      redis.call('ZADD', same, number, id)
      scores[id] = BEHIND + number
      return
    end
    redis.call('ZADD', same, before, first)
    if score then scores[first] = BEHIND + before end
  end
  redis.call('ZADD', same, -1, id)
  scores[id] = at
end

-- next_in_line removes a delivery, which has left its retry set, from those with its order key. If it was the first, the
-- next one is due. An attempt that a late outcome of another replica has overtaken must end first.
local function next_in_line(P, company, sub, id)
  local e = company .. '/' .. sub
  local key = redis.call('HGET', P .. 'ok:' .. e, id)
  if not key or redis.call('ZSCORE', P .. 'eq:' .. e, id) or in_flight(P, company, sub, id) then return end
  local same = P .. 'ok:' .. e .. '/' .. key
  local was_first = redis.call('ZRANGE', same, 0, 0)[1] == id
  redis.call('HDEL', P .. 'ok:' .. e, id)
  redis.call('ZREM', same, id)
  local following = was_first and redis.call('ZRANGE', same, 0, 0)[1]
  while following and not redis.call('ZSCORE', P .. 'eq:' .. e, following) do -- it has left in the same call
    redis.call('ZREM', same, following)
    redis.call('HDEL', P .. 'ok:' .. e, following)
    following = redis.call('ZRANGE', same, 0, 0)[1]
  end
  if not following then return end
  redis.call('ZADD', same, -1, following)
  redis.call('ZADD', P .. 'eq:' .. e, work_time(P), following)
  redis.call('ZADD', P .. 'due', 'LT', work_time(P), 'e:' .. e)
end

-- first_in_order returns the first delivery of an ordered subscriber's retry set, but for those that were there before the
-- subscriber was ordered.
local function first_in_order(P, e) return redis.call('ZRANGEBYSCORE', P .. 'eq:' .. e, IN_ORDER, '(' .. BEHIND, 'LIMIT', 0, 1)[1] end

-- leaves notes that a delivery is about to leave the retry set of its endpoint: if the others wait until this one is due,
-- they wait no more.
local function leaves(P, e, id)
  if first_in_order(P, e) == id then redis.call('HDEL', P .. 'es:' .. e, 'held') end
end

-- put adds deliveries to the retry set of their endpoint: event ids, the times at which they are due, and their order
-- keys (false: none), in turn. The first delivery of an ordered subscriber has the others wait until it is due.
local function put(P, company, sub, waiting)
  local e = company .. '/' .. sub
  local state, scores, times, first = P .. 'es:' .. e, {}, {}, math.huge
  local ordered = redis.call('HGET', state, 'ordered')
  for i = 1, #waiting, 3 do
    local id, at, key = waiting[i], waiting[i + 1], waiting[i + 2]
    if key then
      line_up(P, company, sub, id, at, key, scores)
    else
      scores[id] = ordered and IN_ORDER + number_of(P, company, id) or at
    end
    times[id], first = at, math.min(first, at)
  end
  local added = {}
  for id, score in pairs(scores) do added[#added + 1], added[#added + 2] = score, id end
  redis.call('ZADD', P .. 'eq:' .. e, unpack(added))
  redis.call('ZADD', P .. 'due', 'LT', first, 'e:' .. e)
  local at = ordered and times[first_in_order(P, e)]
  if at then redis.call('HSET', state, 'held', at) end
end

-- version_of returns the version of a delivery's record, '' without a record.
local function version_of(record)
  local bar = record and string.find(record, '|', 1, true)
  return bar and string.sub(record, 2, bar - 1) or ''
end

local CHANGES, CHANGES_S = 50, 691200 -- maximum of changes per subscriber, kept for 8 days

-- changed records that an endpoint's subscriber was paused, resumed, disabled or enabled,
-- or is failing or has recovered. The list is for display only: a damaged key must not fail
-- the script.
local function changed(P, e, what, now)
  local key = P .. 'hs:' .. e
  redis.pcall('LPUSH', key, string.format('%.0f %s', now, what))
  redis.pcall('LTRIM', key, 0, CHANGES - 1)
  redis.pcall('EXPIRE', key, CHANGES_S)
end

local WAITS = '!' -- prefix of the second entry in bl:<company> of a subscriber that is paused or not verified

-- list notes in bl:<company> whether the deliveries of an endpoint go to its retry set, and whether they wait there.
local function list(P, company, sub)
  local e, listed = company .. '/' .. sub, P .. 'bl:' .. company
  local of = redis.call('HMGET', P .. 'es:' .. e, 'paused', 'unverified', 'interval', 'ordered')
  local waits = of[1] or of[2]
  redis.call(waits and 'SADD' or 'SREM', listed, WAITS .. sub)
  redis.call((waits or of[3] or of[4]) and 'SADD' or 'SREM', listed, sub)
  tell(P, 'e:' .. e)
end

-- configure sets how an endpoint is served: interval in ms and burst ('' for no rate), '1' for ordered, '1' for a
-- pause after a dead delivery, '1' if its callback URL must be verified first.
local function configure(P, company, sub, interval, burst, ordered, pause_on_dead, unverified)
  local e = company .. '/' .. sub
  local state = P .. 'es:' .. e
  local function set(field, value)
    if value ~= '' then redis.call('HSET', state, field, value) else redis.call('HDEL', state, field) end
  end
  set('interval', interval)
  set('burst', burst)
  set('ordered', ordered)
  set('ondead', pause_on_dead)
  set('unverified', unverified)
  redis.call(unverified ~= '' and 'SADD' or 'SREM', P .. 'uv', e)
  list(P, company, sub)
end

-- pause has all deliveries of an endpoint wait, and records the reason.
local function pause(P, company, sub, why, now)
  local e = company .. '/' .. sub
  if redis.call('HSETNX', P .. 'es:' .. e, 'paused', now) == 0 then return end
  redis.call('HSET', P .. 'es:' .. e, 'why', why)
  changed(P, e, 'paused', now)
  list(P, company, sub)
end

-- resume ends the pause of an endpoint.
local function resume(P, company, sub)
  local e = company .. '/' .. sub
  if redis.call('HDEL', P .. 'es:' .. e, 'paused', 'why') > 0 then changed(P, e, 'resumed', clock()) end
  list(P, company, sub)
end
