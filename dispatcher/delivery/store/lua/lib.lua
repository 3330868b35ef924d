-- Of an event's deliveries the field '#' counts the live ones, '!' says that one
-- died, and '-' that a disabled subscriber was to have one.
local HELD = '-'
local DAMAGED = '?' -- the answer for a delivery whose event's deliveries cannot be read

local to_compact = {} -- the events of this call that may be compacted, by company
local matchings = {}  -- the events of this call whose matching ended, by company
local woken = {}      -- the key prefixes of partitions that need a wake-up

-- wakes notes what wake returned.
local function wakes(P, n)
  if n > 0 then woken[P] = true end
end

-- gather notes that a member of a sorted set gets a score, or that it leaves the set
-- (false); flush does so, with one command for a set. Members of a set that is given ms
-- go when they are older than that, a few at each flush, and the set when nothing was
-- added for so long.
local gathered, kept_for = {}, {}
local function gather(key, member, score, ms)
  gathered[key] = gathered[key] or {}
  gathered[key][member] = score
  if ms then kept_for[key] = ms end
end
local function flush(now)
  for key, members in pairs(gathered) do
    local added, removed = {}, {}
    for member, score in pairs(members) do
      if score then
        added[#added + 1], added[#added + 2] = score, member
      else
        removed[#removed + 1] = member
      end
    end
    if #removed > 0 then redis.call('ZREM', key, unpack(removed)) end
    if #added > 0 then redis.call('ZADD', key, unpack(added)) end
    local ms = kept_for[key]
    if ms then
      local old = redis.call('ZRANGEBYSCORE', key, '-inf', now - ms, 'LIMIT', 0, 4 + #added)
      if #old > 0 then redis.call('ZREM', key, unpack(old)) end
      redis.call('PEXPIRE', key, ms)
    end
  end
  gathered, kept_for = {}, {}
end

-- settle writes what e.records holds of an event (subscriber and record in turn), and
-- moves the event to the state that its deliveries are in. What is pending has no
-- expiry. e has P, company and id; matched: '' before its matching is complete; then
-- the number of its deliveries, with an 'h' after it when a disabled subscriber was to
-- have one, and the replica's note of it ends; opened: live deliveries more than
-- before; dead: one died; marks: the fields '#', '!' and HELD as they were; head: the
-- first 14 bytes of the event, when the caller has read them. Returns by how much the
-- pending events of the company grew: -1, 0 or 1. Call end_settling when all are
-- settled.
local function settle(e, replica, now, keep, keep_dead, keep_event)
  local P, company, matched, marks, fields = e.P, e.company, e.matched, e.marks, e.records
  local deliveries, event = P .. 'd:' .. company .. '/' .. e.id, P .. 'e:' .. company .. ':' .. e.id
  if matched ~= '' then
    local m = matchings[P .. company] or {P = P, company = company, replica = replica, ids = {}, notes = {}, fanouts = {}}
    matchings[P .. company] = m
    table.insert(m.ids, e.id)
    table.insert(m.notes, company .. '/' .. e.id)
    table.insert(m.fanouts, tonumber(string.match(matched, '^%d+')))
  end
  if e.opened ~= 0 then
    marks[1] = tonumber(marks[1] or 0) + e.opened
    fields[#fields + 1], fields[#fields + 2] = '#', marks[1]
  end
  if e.dead then
    marks[2] = now
    fields[#fields + 1], fields[#fields + 2] = '!', now
  end
  if #fields > 0 then redis.call('HSET', deliveries, unpack(fields)) end
  local head = e.head or redis.pcall('GETRANGE', event, 0, 13)
  if type(head) == 'table' then return 0 end -- no event: damaged
  local state, accepted = string.sub(head, 1, 1), tonumber(string.sub(head, 2))
  if not accepted or state == COMPACTED then -- what came too late for the event goes too
    if tonumber(marks[1] or 0) > 0 then return 0 end
    if state == COMPACTED and not marks[2] then
      redis.call('UNLINK', deliveries)
    else
      redis.call('PEXPIRE', deliveries, keep_dead, 'NX')
    end
    return 0
  end
  if state == READY and matched == '' then return 0 end
  if string.sub(matched, -1) == 'h' then
    redis.call('HSET', deliveries, HELD, 1)
    marks[3] = '1'
  end
  local is = SETTLED
  if tonumber(marks[1] or 0) > 0 then is = MATCHED end
  if is == SETTLED and (state ~= SETTLED or e.dead) then
    local ms = math.max(accepted + keep_event - now, 1000)
    if marks[2] then ms, keep = math.max(ms, keep_dead), math.max(keep, keep_dead) end
    redis.call('PEXPIRE', event, ms)
    redis.call('PEXPIRE', deliveries, keep)
  elseif is == SETTLED then -- written late
    redis.call('PEXPIRE', deliveries, keep, 'NX')
  end
  if is == state then return 0 end
  redis.call('SETRANGE', event, 0, is)
  if is == SETTLED then
    if not (marks[2] or marks[3]) then
      local of = to_compact[P .. company] or {P = P, company = company}
      of[#of + 1] = string.format('%08x', math.floor(now / 1000)) .. e.id
      to_compact[P .. company] = of
    end
    return -1
  end
  if state ~= SETTLED then return 0 end
  redis.call('PERSIST', event)
  redis.call('PERSIST', deliveries)
  return 1
end

-- weigh corrects what a company's events are charged when they are claimed, the
-- average number of their deliveries, by those of events that were matched.
local function weigh(state, cost, fanouts)
  local before = tonumber(cost or 0)
  cost = before > 0 and before or math.max(fanouts[1], 1)
  for _, n in ipairs(fanouts) do cost = cost + (math.max(n, 1) - cost) / 8 end
  if math.abs(cost - before) > before / 1000 then redis.call('HSET', state, 'cost', cost) end
end

-- end_settling ends the notes of events whose matching ended, and appends the
-- settled ones to those that compact.lua looks at. Returns the key prefixes of
-- partitions that need a wake-up.
local function end_settling(now)
  for _, m in pairs(matchings) do
    redis.call('HDEL', m.P .. 'n:' .. m.replica, unpack(m.notes))
    local state = m.P .. 'c:' .. m.company
    local of_company = redis.call('HMGET', state, 'cost', 'ordered')
    weigh(state, of_company[1], m.fanouts)
    if of_company[2] then wakes(m.P, end_order(m.P, m.company, m.ids, clock())) end
  end
  for _, of in pairs(to_compact) do
    local length = redis.call('RPUSH', of.P .. 'done:' .. of.company, unpack(of))
    if length == #of then redis.call('ZADD', of.P .. 'compact', now, of.company) end
  end
  local out = {}
  for P in pairs(woken) do out[#out + 1] = P end
  return out
end

-- give_back counts bytes of an hour no more that are not kept any more, unless the hour
-- is past and is not counted at all.
local function give_back(P, company, hour, size)
  if redis.call('HEXISTS', P .. 'cb:' .. company, hour) == 0 then return end
  redis.call('HINCRBY', P .. 'cb:' .. company, hour, -size)
  redis.call('HINCRBY', P .. 'c:' .. company, 'bytes', -size)
end

local function count_pending(P, company, change)
  if change == 0 then return end
  redis.call('HINCRBY', P .. 'c:' .. company, 'pending', change)
  redis.call('INCRBY', P .. 'pending', change)
end
