-- Writes the outcomes of deliveries, each by compare-and-set on the version of its record,
-- moves the deliveries to the indexes of their status, and moves their work.
-- KEYS: 1 a partition's due set, 2 a key that never exists
-- ARGV: 1 now ms or '', 2 ms that a delivery is kept, 3 ms that a dead delivery is kept, 4 ms
--   that an event is kept after it was accepted, 5 ms that a delivered event is kept before it is
--   compacted, 6 pause of a breaker in ms, 7 unreachable
--   attempts in a row that open a breaker, 8 number of events; then for each event: key
--   prefix, company, id, token under which its work is noted, result of its matching (the
--   field matched of settle), number of changes; and for each of its changes: subscriber, expected version ('' for
--   none), record, created ms, ms until the delivery is due ('' for never), flags, ms for
--   which its endpoint queue is not served ('' for none), the notice of its death ('' for
--   none)
-- Flags: c the delivery was claimed from its endpoint queue, s the endpoint was reached, u
--   the endpoint was not reached, o the breaker is open, b the endpoint has no place for
--   the delivery, g do not change the delivery while an attempt is under way, d replace a
--   record that cannot be read, of a delivery that was live
-- Returns the key prefixes of partitions that need a wake-up; then for each change 1 when
-- it was written, 0 when an attempt is under way, -1 when the event is compacted, the
-- stored record when its version differs, or DAMAGED.
local now, keep, keep_dead, keep_event = time_of(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local keep_delivered, breaker_pause, trips = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
local LIVE = {P = true, R = true}

-- The script reads all keys before it writes anything but the records of settled events, which it moves.
local changes, events, endpoints, prefixes = {}, {}, {}, {}

local function event_of(P, company, id)
  local key = P .. 'd:' .. company .. '/' .. id
  local e = events[key]
  if not e then
    e = {P = P, company = company, id = id, key = key, matched = '', opened = 0, created = 0, longer = 0, records = {}, subs = {}, found = {}}
    events[key] = e
    events[#events + 1] = e
  end
  return e
end

-- endpoint_of returns the data of this call about an endpoint:
--   s: its state, from the function endpoint; nil when no change may concern its queue
--   now: time of the work of its partition, with s
--   queue: true when a change may concern its queue
--   claimed: event ids of deliveries with a claim that may end
--   ended: event ids of deliveries with an ended claim
--   put: the deliveries to add to its queue: event id to due time
local function endpoint_of(P, company, sub)
  local name = company .. '/' .. sub
  local x = endpoints[name]
  if not x then
    x = {P = P, company = company, sub = sub, name = name, claimed = {}, ended = {}, put = {}}
    endpoints[name] = x
    endpoints[#endpoints + 1] = x
  end
  return x
end

local at = 9
for _ = 1, tonumber(ARGV[8]) do
  local P, company, id, token = ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3]
  local e = event_of(P, company, id)
  if P ~= prefixes[#prefixes] then prefixes[#prefixes + 1] = P end
  if ARGV[at + 4] ~= '' then e.matched, e.token = ARGV[at + 4], token end
  local first = at + 6
  at = first + 8 * ARGV[at + 5]
  for a = first, at - 1, 8 do
    local x, flags = endpoint_of(P, company, ARGV[a]), ARGV[a + 5]
    changes[#changes + 1] = {e = e, x = x, at = a, token = token}
    e.subs[#e.subs + 1] = x.sub
    if flags ~= '' or ARGV[a + 1] ~= '' or ARGV[a + 6] ~= '' or string.sub(ARGV[a + 2], 1, 1) ~= 'D' then
      x.queue = true -- for all changes except a new delivery that succeeded at its first attempt
      if string.find(flags, 'c', 1, true) then x.claimed[#x.claimed + 1] = id end
    end
  end
end
check(prefixes)

for _, e in ipairs(events) do
  company_of(e.P, e.company)
  e.head = redis.pcall('GETRANGE', e.P .. 'e:' .. e.company .. ':' .. e.id, 0, 13)
  if type(e.head) == 'string' and string.sub(e.head, 1, 1) == SETTLED then unpack_event(e, keep) end
  local n, found = #e.subs, {}
  e.alone = redis.call('EXISTS', e.key) == 0
  if not e.alone then
    e.subs[n + 1], e.subs[n + 2], e.subs[n + 3] = '#', '!', HELD
    found = redis.pcall('HMGET', e.key, unpack(e.subs))
  end
  e.damaged = found.err ~= nil
  for i = 1, n do e.found[e.subs[i]] = found[i] or nil end
  e.marks = {found[n + 1], found[n + 2], found[n + 3]}
end
for _, x in ipairs(endpoints) do
  x.by = {}
  if x.queue then x.s, x.now = endpoint(x.P, x.name), work_time(x.P) end
  if #x.claimed > 0 then
    local by = redis.call('HMGET', x.P .. 'ef:' .. x.name, unpack(x.claimed))
    for i, id in ipairs(x.claimed) do x.by[id] = by[i] or nil end
  end
end

-- ends ends the claim of a delivery under a token, and reports whether there was one. It does
-- not end the claim of an owner that took the delivery over, nor a later claim under the token.
local function ends(x, id, version, token)
  local note, by = reference(x.company, id, x.sub), x.by[id]
  if by and by ~= claim_name(token, version) then return false end
  -- The in-flight hash expires before the notes do. Without an entry, the note decides.
  if not by and redis.call('HDEL', x.P .. 'n:' .. token, note) == 0 then return false end
  x.by[id] = nil
  table.insert(x.ended, id)
  end_note(x.P, token, note)
  return true
end

-- under_way reports whether an attempt of a delivery from an endpoint queue is under way.
local function under_way(x, id)
  for _, ended in ipairs(x.ended) do
    if ended == id then return false end
  end
  return in_flight(x.P, x.company, x.sub, id)
end

-- learn updates the state of an endpoint after an attempt: the number of unreachable
-- attempts in a row, and the time before which its queue is not served.
local function learn(x, flags, pause_ms)
  local s, not_before = x.s, 0
  local fails = s.fails
  if string.find(flags, 'u', 1, true) then
    s.fails = (s.fails or 0) + 1
    if s.fails >= trips then not_before = x.now + breaker_pause end
  elseif string.find(flags, 's', 1, true) then
    s.fails = nil
  elseif string.find(flags, 'o', 1, true) then
    s.fails = trips
  end
  if pause_ms ~= '' then not_before = math.max(not_before, x.now + pause_ms) end
  if not_before > (s['until'] or 0) then s['until'], x.learned = not_before, true end
  if s.fails ~= fails then x.learned = true end
end

-- reindex moves a delivery between the indexes of live and of dead deliveries. A delivery
-- can stay live for any time, so the indexes of live deliveries neither expire nor are
-- trimmed.
local function reindex(e, sub, was, is, created)
  local P = e.P
  if LIVE[is] ~= LIVE[was] then
    local score = LIVE[is] and created or false
    gather(P .. 'dl:' .. e.company .. '/' .. sub, e.id, score)
    gather(P .. 'cl:' .. e.company, e.id .. '/' .. sub, score)
    e.opened = e.opened + (LIVE[is] and 1 or -1)
  end
  if is == 'X' then
    index_dead(P, e.company, e.id, sub, now, keep_dead)
    e.dead = true
  elseif was == 'X' then
    index_dead(P, e.company, e.id, sub, false)
  end
end

-- write writes a change with the expected version. ended is true when this call ended the
-- claim of the delivery.
local function write(e, x, a, found, ended)
  local record, created, due = ARGV[a + 2], ARGV[a + 3], ARGV[a + 4]
  local was, is = found and string.sub(found, 1, 1), string.sub(record, 1, 1)
  if string.find(ARGV[a + 5], 'd', 1, true) then was = 'P' end
  e.found[x.sub] = record
  e.records[#e.records + 1], e.records[#e.records + 2] = x.sub, record
  e.longer = e.longer + longer(record) - longer(found or '')
  if not found then
    e.created = e.created + 1
    gather(e.P .. 'da:' .. x.name, e.id, created, keep)
  end
  reindex(e, x.sub, was, is, created)
  if is == 'X' and was ~= 'X' then
    wakes(e.P, notice(e.P, e.company, x.sub, ARGV[a + 7], now))
    if x.s.ondead then
      pause(e.P, e.company, x.sub, 'DEAD', now)
      x.s.paused = x.s.paused or now
    end
  end
  if LIVE[is] and due ~= '' then
    -- If an attempt is under way, its outcome adds the delivery to the queue.
    if ended or not found or not under_way(x, e.id) then
      x.backlog = x.backlog or string.find(ARGV[a + 5], 'b', 1, true)
      x.put[e.id] = x.now + due
      if ended and ARGV[a + 5] == 'c' and ARGV[a + 6] == '' and due == '0' then went_back(e.P, e.company, x.now) end -- it was not tried
    end
  elseif LIVE[was] and not ended then
    x.put[e.id] = nil
    take_out(e.P, e.company, x.sub, e.id)
  end
end

local out = {0}
for i, change in ipairs(changes) do
  local e, x, a = change.e, change.x, change.at
  local expected, flags = ARGV[a + 1], ARGV[a + 5]
  local claimed, damaged = string.find(flags, 'c', 1, true), string.find(flags, 'd', 1, true)
  local ended = claimed and ends(x, e.id, expected, change.token)
  if x.s and (ended or not claimed) then learn(x, flags, ARGV[a + 6]) end
  local found = e.found[x.sub]
  if e.damaged then
    out[i + 1] = DAMAGED
    if ended then x.put[e.id] = x.now end -- the next claim quarantines the delivery
  elseif damaged and not found or not damaged and version_of(found) ~= expected then
    out[i + 1] = found or ''
    -- The caller may stop before its next write, or the record is damaged: queue it again.
    if ended and found and not finished(found) then x.put[e.id] = x.now end
  elseif expected == '' and type(e.head) == 'string' and string.sub(e.head, 1, 1) == COMPACTED then
    out[i + 1] = -1
  elseif string.find(flags, 'g', 1, true) and under_way(x, e.id) then
    out[i + 1] = 0
  else
    out[i + 1] = 1
    write(e, x, a, found, ended)
  end
end

-- serve_again writes the state of an endpoint, ends its claims and adds deliveries to its
-- queue. The caller then offers the queue.
local function serve_again(x)
  local P, s, state = x.P, x.s, x.P .. 'es:' .. x.name
  if x.learned then
    if s.fails then redis.call('HSET', state, 'fails', s.fails) else redis.call('HDEL', state, 'fails') end
    if s['until'] then redis.call('HSET', state, 'until', s['until']) end
  end
  if #x.ended > 0 then
    redis.call('HDEL', P .. 'ef:' .. x.name, unpack(x.ended))
    freed(P, x.name, s, x.now)
  end
  if x.backlog then redis.call('SADD', P .. 'bl:' .. x.company, x.sub) end
  for id, due in pairs(x.put) do
    if s.ordered then
      wakes(P, put(P, x.company, x.sub, id, due, x.now))
    else
      gather(P .. 'eq:' .. x.name, id, due)
    end
  end
end

for _, x in ipairs(endpoints) do
  if x.s then serve_again(x) end
end
flush(now)
for _, x in ipairs(endpoints) do
  if x.s and not (x.s.full or x.s.paused) then wakes(x.P, offer(x.P, x.company, x.sub, x.now, x.s)) end
end
for _, e in ipairs(events) do
  if not e.damaged then count_pending(e.P, e.company, settle(e, now, keep, keep_dead, keep_event, keep_delivered)) end
end
out[1] = end_settling(now)
return out
