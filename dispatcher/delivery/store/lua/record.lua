-- Writes the outcomes of deliveries, each by compare-and-set on the version of its record,
-- and moves the deliveries to the indexes of their status. A live delivery is in the retry set of its endpoint.
-- KEYS: 1 a partition's due set, 2 a key that never exists
-- ARGV: 1 now ms or '', 2 ms that a delivery is kept, 3 ms that a dead delivery is kept, 4 ms
--   that an event is kept after it was accepted, 5 ms that a settled event is kept at least for the history, 0 without a
--   history, 6 number of events; then for each event: key prefix, company, id, token of the writer as owner of the
--   partition ('' for none), result of its matching (the field matched of settle), number of changes; and for each of
--   its changes: subscriber, expected version ('' for none), record, created ms, ms until the delivery is due ('' for
--   never), flags, unreachable attempts of its endpoint in a row and ms until the endpoint is served again ('' for both:
--   as before), the notice of its death ('' for none)
-- Flags: c the delivery was marked as in flight under the token, g do not change the delivery while an attempt is
--   under way, d replace a record that cannot be read, of a delivery that was live
-- Returns the key prefixes of partitions whose owner is to be woken; then for each change 1 when
-- it was written, 0 when an attempt is under way, -1 when the event is compacted, the
-- stored record when its version differs, or DAMAGED.
local now, keep, keep_dead, keep_event = time_of(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
for_history = tonumber(ARGV[5])
local LIVE = {P = true, R = true}

-- The script reads all keys before it writes anything but the records of events that delivered.lua has settled, which it
-- moves.
local changes, events, prefixes, owners, companies = {}, {}, {}, {}, {}
local in_line = {} -- changes of deliveries that may have an order key
local waiting, left = {}, {} -- endpoints whose deliveries wait, and those of which some may have left, by company/subscriber

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

local at = 7
for _ = 1, tonumber(ARGV[6]) do
  local P, company, id, token = ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3]
  local e = event_of(P, company, id)
  if P ~= prefixes[#prefixes] then prefixes[#prefixes + 1] = P end
  if ARGV[at + 4] ~= '' then e.matched = ARGV[at + 4] end
  local first = at + 6
  at = first + 9 * ARGV[at + 5]
  for a = first, at - 1, 9 do
    changes[#changes + 1] = {e = e, sub = ARGV[a], endpoint = company .. '/' .. ARGV[a], at = a, token = token}
    e.subs[#e.subs + 1] = ARGV[a]
  end
end
check(prefixes)
for _, P in ipairs(prefixes) do owners[P] = redis.call('GET', P .. 'owner') end

for _, e in ipairs(events) do
  if not companies[e.company] then -- fails for a damaged key, before anything is written
    companies[e.company] = redis.call('HEXISTS', e.P .. 'c:' .. e.company, 'pending')
  end
  e.head = redis.pcall('GETRANGE', e.P .. 'e:' .. e.company .. ':' .. e.id, 0, 13)
  if type(e.head) == 'string' and string.sub(e.head, 1, 1) == SETTLED then unpack_event(e, keep) end
  local n, found = #e.subs, {}
  if redis.call('EXISTS', e.key) == 1 then
    e.subs[n + 1], e.subs[n + 2], e.subs[n + 3] = '#', '!', HELD
    found = redis.pcall('HMGET', e.key, unpack(e.subs))
  end
  e.damaged = found.err ~= nil
  for i = 1, n do e.found[e.subs[i]] = found[i] or nil end
  e.marks = {found[n + 1], found[n + 2], found[n + 3]}
end

-- ends removes the mark of an attempt under a token, and reports whether there was one. The mark of another owner,
-- which has taken the delivery over, stays.
local function ends(change)
  local marks = change.e.P .. 'ef:' .. change.endpoint
  local mark = redis.call('HGET', marks, change.e.id)
  return mark and owner_of(mark) == change.token and redis.call('HDEL', marks, change.e.id) == 1
end

-- learn notes what the owner of the partition has learned of an endpoint.
local function learn(change)
  local P, fails, ms = change.e.P, ARGV[change.at + 6], ARGV[change.at + 7]
  if fails == '' or owners[P] ~= change.token then return end
  local state = P .. 'es:' .. change.endpoint
  if tonumber(redis.call('HGET', state, 'until') or 0) >= IN_ORDER then return end -- its subscriber is disabled
  if fails == '0' and ms == '0' then
    redis.call('HDEL', state, 'fails')
  else
    redis.call('HSET', state, 'fails', fails, 'until', work_time(P) + ms)
  end
end

-- reindex moves a delivery between the indexes of live and of dead deliveries. A delivery
-- can stay live for any time, so the indexes of live deliveries neither expire nor are
-- trimmed.
local function reindex(e, sub, was, is, created, key)
  local P = e.P
  if LIVE[is] ~= LIVE[was] then
    local score = LIVE[is] and created or false
    gather(P .. 'dl:' .. e.company .. '/' .. sub, e.id, score)
    gather(P .. 'cl:' .. e.company, e.id .. '/' .. sub, score)
    local more = LIVE[is] and 1 or -1
    e.opened = e.opened + more
    if key then e.longer = e.longer + more * ORDER_BYTES end
  end
  if is == 'X' then
    index_dead(P, e.company, e.id, sub, now, keep_dead)
    e.dead = true
  elseif was == 'X' then
    index_dead(P, e.company, e.id, sub, false)
  end
end

-- write writes a change with the expected version.
local function write(change, found)
  local e, sub, a = change.e, change.sub, change.at
  local record, created, due = ARGV[a + 2], ARGV[a + 3], ARGV[a + 4]
  local was, is = found and string.sub(found, 1, 1), string.sub(record, 1, 1)
  local damaged = string.find(ARGV[a + 5], 'd', 1, true)
  if damaged then was = 'P' end
  e.found[sub] = record
  e.records[#e.records + 1], e.records[#e.records + 2] = sub, record
  e.longer = e.longer + longer(record) - longer(found or '')
  if not found then
    e.created = e.created + 1
    gather(e.P .. 'da:' .. change.endpoint, e.id, created, keep)
  end
  reindex(e, sub, was, is, created, order_key(record))
  if is == 'X' and was ~= 'X' then
    wakes(e.P, notice(e.P, e.company, sub, ARGV[a + 8], now))
    if redis.call('HEXISTS', e.P .. 'es:' .. change.endpoint, 'ondead') == 1 then pause(e.P, e.company, sub, 'DEAD', now) end
  end
  if LIVE[is] and due ~= '' then
    local x = waiting[change.endpoint] or {P = e.P, company = e.company, sub = sub}
    waiting[change.endpoint] = x
    x[#x + 1], x[#x + 2], x[#x + 3] = e.id, work_time(e.P) + due, order_key(record) or false
    if owners[e.P] ~= change.token then wakes(e.P, tell(e.P, 'e:' .. change.endpoint)) end
  elseif found then
    leaves(e.P, change.endpoint, e.id)
    gather(e.P .. 'eq:' .. change.endpoint, e.id, false)
    left[change.endpoint] = e.P
    if owners[e.P] ~= change.token then wakes(e.P, tell(e.P, 'e:' .. change.endpoint)) end
  end
end

local out = {0}
for i, change in ipairs(changes) do
  local e, a = change.e, change.at
  local expected, flags = ARGV[a + 1], ARGV[a + 5]
  local damaged = string.find(flags, 'd', 1, true)
  if string.find(flags, 'c', 1, true) then ends(change) end
  if damaged or order_key(ARGV[a + 2]) then in_line[#in_line + 1] = change end
  learn(change)
  local found = e.found[change.sub]
  if e.damaged then
    out[i + 1] = DAMAGED
  elseif damaged and not found or not damaged and version_of(found) ~= expected then
    out[i + 1] = found or ''
  elseif expected == '' and type(e.head) == 'string' and string.sub(e.head, 1, 1) == COMPACTED then
    out[i + 1] = -1
  elseif string.find(flags, 'g', 1, true) and in_flight(e.P, e.company, change.sub, e.id) then
    out[i + 1] = 0
  else
    out[i + 1] = 1
    write(change, found)
  end
end
flush(now)
for _, x in pairs(waiting) do put(x.P, x.company, x.sub, x) end
for endpoint, P in pairs(left) do -- nothing waits any more
  if redis.call('EXISTS', P .. 'eq:' .. endpoint) == 0 then redis.call('ZREM', P .. 'due', 'e:' .. endpoint) end
end
for _, e in ipairs(events) do
  if not e.damaged then count_pending(e.P, e.company, settle(e, now, keep, keep_dead, keep_event)) end
end
for _, change in ipairs(in_line) do next_in_line(change.e.P, change.e.company, change.sub, change.e.id) end -- once the records are written
out[1] = end_settling(now)
return out
