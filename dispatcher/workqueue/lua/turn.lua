-- Reads what companies of one partition have waiting, for the partition's owner: events after a place in the log,
-- events that are to be matched again, and due deliveries. It marks the deliveries as in flight.
-- KEYS: 1 the partition's due set, 2 a key that never exists
-- ARGV: 1 key prefix, 2 token of the owner, 3 tokens of former owners that still work, each between line feeds, and then ranges
--   of numbers of calls of the owner whose answers were lost,
--   4 maximum of bytes of events, 5 ms for which ordered subscribers wait, 6 number of this call, 7 number of companies; then for each company: id, place in the log after which to
--   read, maximum of events, place up to which events may have deliveries, lowest number of an event that is
--   neither matched nor placed ('' for none), number of ids, number of endpoints, the ids, and for each endpoint its subscriber and the
--   maximum of its deliveries (-1: one, unless it has a rate)
-- Returns {-1} when the partition has another owner, {-2} when the call or a later one has run before; else for each company {version of its subscribers, members of
--   bl:<company>, place of its last event, events, endpoints, 1 if the bytes are used up}, or {error} when one of its keys is damaged. Events are
--   place ('' for one of the ids), id, event, subscribers that have a delivery (false: not looked for), in turn.
--   Endpoints are ms until the next service (0: more is due, -1: none is known), fails, ms of `until`, interval,
--   burst, ms until the next delivery at the rate, 1 if ordered, plus 2 if what is due waits for an attempt or
--   an earlier event, deliveries, in turn; deliveries are id, record, event, in turn. What does not fit into the
--   bytes is left out, and is due at once.
local P, token = ARGV[1], ARGV[2]
check({P})
if redis.call('GET', P .. 'owner') ~= token then return {-1} end
local by, last = string.match(redis.call('HGET', P .. 'clock', 'call') or '', '^(.*) (%d+)$')
if by == token and tonumber(last) >= tonumber(ARGV[6]) then return {-2} end
redis.call('HSET', P .. 'clock', 'call', token .. ' ' .. ARGV[6])
local now, bytes = work_time(P), tonumber(ARGV[4])

-- read returns DAMAGED for a value of the wrong type, instead of an error. The caller
-- cannot decode DAMAGED either, and does not mistake it for a missing value.
local DAMAGED = '?'
local function read(command, ...)
  local value = redis.pcall(command, ...)
  if type(value) == 'table' then return DAMAGED end
  return value
end

local function event_of(company, id)
  local event = read('GET', P .. 'e:' .. company .. ':' .. id)
  if event == '' then event = DAMAGED end
  bytes = bytes - (event and #event or 0)
  return event
end

-- known_of lists the subscribers that have a delivery of an event.
local function known_of(company, id)
  local known = redis.pcall('HKEYS', P .. 'd:' .. company .. '/' .. id)
  return known.err and {} or known
end

local function add_event(out, company, place, id, known)
  local n = #out
  out[n + 1], out[n + 2], out[n + 3], out[n + 4] = place, id, event_of(company, id), known and known_of(company, id)
end

local FIELDS = {'until', 'fails', 'interval', 'burst', 'tat', 'ordered', 'held', 'paused', 'unverified', 'gone'}
local ORDERED_MS = tonumber(ARGV[5])

local lost = {} -- the calls whose answers were lost
for first, last in string.gmatch(string.match(ARGV[3], '[^\n]*$'), '(%d+)-(%d+)') do lost[#lost + 1] = {tonumber(first), tonumber(last)} end

-- works reports whether the attempt with a mark is under way.
local function works(mark)
  if not mark then return false end
  local by, call = string.match(mark, '^(.*) (%d+)$')
  if by ~= token then return string.find(ARGV[3], '\n' .. by .. '\n', 1, true) ~= nil end
  for _, range in ipairs(lost) do
    if tonumber(call) >= range[1] and tonumber(call) <= range[2] then return false end
  end
  return true
end

-- free_of lists at most `most` deliveries of a retry set with scores from low to high that are not in flight, nor begun by
-- a lost owner and to wait for its attempt.
local function free_of(queue, marks, busy, low, high, most, waits_for_lost)
  local out = {}
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', queue, low, high, 'LIMIT', 0, busy + most)) do
    local mark = #out < most and busy > 0 and redis.call('HGET', marks, id)
    if #out < most and not works(mark) and not (mark and waits_for_lost(id)) then out[#out + 1] = id end
  end
  return out
end

-- working reports whether any attempt of an endpoint is under way.
local function working(marks)
  for _, mark in ipairs(redis.call('HVALS', marks)) do
    if works(mark) then return true end
  end
  return false
end

-- serve marks due deliveries of an endpoint as in flight, and appends it to out.
local function serve(company, sub, most, unplaced, out, marked)
  local e, s = company .. '/' .. sub, {}
  local queue, marks = P .. 'eq:' .. e, P .. 'ef:' .. e
  for i, value in ipairs(redis.call('HMGET', P .. 'es:' .. e, unpack(FIELDS))) do s[FIELDS[i]] = tonumber(value) end
  local n, wait, held, deliveries, for_lost, for_event = #out, -1, false, {}, false, false
  local not_before = math.max(s['until'] or 0, s.ordered and math.max(s.held or 0, now + ORDERED_MS) or 0)
  s.paused = s.paused or s.unverified
  if s.gone then s.ordered, s.paused, s.interval, s['until'], s.fails, not_before = nil, nil, nil, nil, nil, 0 end
  if most < 0 then most = s.interval and 0 or 1 end
  if s.ordered then most = math.min(most, 1) end
  local function record_of(id) return read('HGET', P .. 'd:' .. company .. '/' .. id, sub) end
  local function waits_for_lost(id) -- as all with its order key
    local waits = ORDERED_MS > 0 and not s.gone and order_key(record_of(id)) ~= nil
    for_lost = for_lost or waits
    return waits
  end
  if not s.paused and not_before <= now then
    local busy = redis.call('HLEN', marks)
    local ids = free_of(queue, marks, busy, '-inf', s.gone and '+inf' or now, most + 1, waits_for_lost)
    if #ids <= most and not s.gone then
      for _, id in ipairs(free_of(queue, marks, busy, IN_ORDER, '(' .. BEHIND, most + 1 - #ids, waits_for_lost)) do ids[#ids + 1] = id end
    end
    held = s.ordered and (working(marks) or ids[1] and unplaced and number_of(P, company, ids[1]) > unplaced)
    if held then most = 0 end
    local taken, left = {}, #ids
    for _, id in ipairs(ids) do
      if bytes <= 0 or #taken == 2 * most then break end
      local record = record_of(id)
      if not s.gone and unplaced and order_key(record) and number_of(P, company, id) > unplaced then
        for_event = true
      else
        taken[#taken + 1], taken[#taken + 2] = id, token .. ' ' .. ARGV[6]
        deliveries[#deliveries + 1], deliveries[#deliveries + 2] = id, record
        deliveries[#deliveries + 1] = event_of(company, id)
      end
      left = left - 1
    end
    if #taken > 0 then
      marked[#marked + 1] = {marks, taken}
      redis.call('HSET', marks, unpack(taken))
      redis.call('EXPIRE', marks, 3600)
    end
    -- Beyond the window there may be more, also when some of it waits for others.
    if not held and (left > 0 or #taken > 0 and #ids > most) then wait = 0 end
  elseif not s.paused then
    wait = not_before - now
  end
  if wait == -1 and not s.paused then
    local following = redis.call('ZRANGEBYSCORE', queue, '(' .. now, '(' .. IN_ORDER, 'WITHSCORES', 'LIMIT', 0, 1)
    if following[2] then
      wait = following[2] - now
    elseif redis.call('EXISTS', queue) == 0 then
      redis.call('ZREM', P .. 'due', 'e:' .. e)
    end
    if for_lost then wait = wait < 0 and ORDERED_MS or math.min(wait, ORDERED_MS) end
  end
  out[n + 1], out[n + 2], out[n + 3] = math.ceil(wait), s.fails or 0, math.max(0, (s['until'] or 0) - now)
  out[n + 4], out[n + 5], out[n + 6] = string.format('%.6f', s.interval or 0), s.burst or 0, math.floor((s.tat or now) - now)
  out[n + 7], out[n + 8] = (s.ordered and 1 or 0) + ((held or for_event) and 2 or 0), deliveries
end

-- company_at returns the answer for the company whose arguments begin at a, and lists the marks that it sets.
local function company_at(a, marked)
  local company, place, most = ARGV[a], ARGV[a + 1], tonumber(ARGV[a + 2])
  local known_to, unplaced = tonumber(ARGV[a + 3]), tonumber(ARGV[a + 4])
  local ids, endpoints = tonumber(ARGV[a + 5]), tonumber(ARGV[a + 6])
  local events, served = {}, {}
  for i = a + 7, a + 6 + ids do add_event(events, company, '', ARGV[i], true) end
  if most > 0 then
    local found = redis.call('ZRANGEBYSCORE', P .. 'ei:' .. company, '(' .. place, '+inf', 'WITHSCORES', 'LIMIT', 0, most)
    for i = 1, #found, 2 do
      if bytes <= 0 then break end
      add_event(events, company, found[i + 1], found[i], tonumber(found[i + 1]) <= known_to)
    end
  end
  for i = a + 7 + ids, a + 5 + ids + 2 * endpoints, 2 do
    serve(company, ARGV[i], tonumber(ARGV[i + 1]), unplaced, served, marked)
  end
  return {redis.call('HGET', P .. 's:' .. company, 'v') or '0', redis.call('SMEMBERS', P .. 'bl:' .. company),
    redis.call('HGET', P .. 'c:' .. company, 'at') or '0', events, served, bytes <= 0 and 1 or 0}
end

local out, a = {}, 8
for i = 1, tonumber(ARGV[7]) do
  local marked = {}
  local ok, answer = pcall(company_at, a, marked)
  for _, of in ipairs(ok and {} or marked) do -- one of its other keys is damaged: nothing of it begins
    for n = 1, #of[2], 2 do redis.call('HDEL', of[1], of[2][n]) end
  end
  out[i] = ok and answer or {type(answer) == 'table' and answer.err or tostring(answer)}
  a = a + 7 + ARGV[a + 5] + 2 * ARGV[a + 6]
end
return out
