-- Marks in the hash of an event's deliveries: the field '#' counts the live deliveries, '!'
-- means that a delivery is dead, '-' that a disabled subscriber was to have a delivery.
local HELD = '-'
local DAMAGED = '?' -- the result for a delivery when the event's deliveries are unreadable

-- An event that delivered.lua has settled has the records of its deliveries in its own value (events/layout/lua/lib.lua).
-- Each consists of the subscriber (36 bytes), the length of the record in 6 hex digits, and the record.

-- unpack_records returns subscriber and record in turn, from the result of split: all, or those of the
-- subscriber only.
local function unpack_records(text, only)
  local out, at = {}, 1
  while at <= #text do
    local sub, from = string.sub(text, at, at + 35), at + 42
    local n = tonumber(string.sub(text, at + 36, from - 1), 16) or #text -- damaged
    if not only or sub == only then
      out[#out + 1], out[#out + 2] = sub, string.sub(text, from, from + n - 1)
    end
    at = from + n
  end
  return out
end

-- packed_of returns the result of split for an event, without value: as stored; '' and nil for one that is not
-- settled or cannot be read.
local function packed_of(P, company, id, value)
  local event = P .. 'e:' .. company .. ':' .. id
  if value == nil and redis.pcall('GETRANGE', event, 0, 0) == SETTLED then value = redis.call('GET', event) end
  return split(type(value) == 'string' and value or '')
end

-- deliveries_of returns the fields of the hash of an event's deliveries, name and value in turn, also when
-- the event's value has the records; an error for a hash that cannot be read. value is the event, if the
-- caller has it.
local function deliveries_of(P, company, id, value)
  local fields = redis.pcall('HGETALL', P .. 'd:' .. company .. '/' .. id)
  if #fields > 0 or fields.err then return fields end
  local _, text = packed_of(P, company, id, value)
  return text and unpack_records(text) or fields
end

-- longer returns the bytes of a record that are not in DELIVERY_BYTES.
local function longer(record) return math.max(0, #record - SHORT_RECORD) end

-- With a history, a settled event waits in a list of its partition until it is written there. Only then it may be
-- compacted: archived.lua moves it to the list that compact.lua reads.
-- for_history is the ms that such an event is kept at least, 0 without a history. The scripts set it.
local for_history = 0
local to_archive = {} -- entries of the list, by key prefix

-- archives notes that an event has settled, or with the mark ERASED that it was erased.
local ERASED = 'E'
local function archives(P, company, id, mark, now)
  if for_history == 0 then return end
  local of = to_archive[P] or {}
  to_archive[P] = of
  of[#of + 1] = string.format('%08x', math.floor(now / 1000)) .. mark .. company .. '/' .. id
end

local kept = {}       -- changes of the bytes that companies keep, by company and hour
local to_compact = {} -- the events of this call that may be compacted, by company
local woken = {}      -- the key prefixes of partitions whose owner is to be woken
local pending = {}    -- the changes of the numbers of pending events, by company

-- compacts notes that an event may be compacted. entry is the second in which it settled (8 hex digits) and its id.
local function compacts(P, company, entry)
  local of = to_compact[P .. company] or {P = P, company = company}
  to_compact[P .. company] = of
  of[#of + 1] = entry
end

-- may_compact is compacts for an entry of the list of settled and erased events.
local function may_compact(P, entry)
  if string.sub(entry, 9, 9) == SETTLED then compacts(P, string.sub(entry, 10, 45), string.sub(entry, 1, 8) .. string.sub(entry, 47)) end
end

-- wakes notes that the owner of a partition is to be woken, if n is more than 0.
local function wakes(P, n)
  if n > 0 then woken[P] = true end
end

-- gather collects changes of sorted sets: a new score of a member, or its removal (false).
-- flush writes them, with one command per set. With ms, members are added by index.
local gathered, kept_for = {}, {}
local function gather(key, member, score, ms)
  gathered[key] = gathered[key] or {}
  gathered[key][member] = score
  if ms then kept_for[key] = ms end
end

-- index adds to a sorted set scores and members, in turn. It removes a few members that are older than ms, and the set
-- expires ms after the last addition.
local function index(key, added, ms, now)
  redis.call('ZADD', key, unpack(added))
  local old = redis.call('ZRANGEBYSCORE', key, '-inf', now - ms, 'LIMIT', 0, 4 + #added)
  if #old > 0 then redis.call('ZREM', key, unpack(old)) end
  redis.call('PEXPIRE', key, ms)
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
    if #added > 0 and kept_for[key] then
      index(key, added, kept_for[key], now)
    elseif #added > 0 then
      redis.call('ZADD', key, unpack(added))
    end
  end
  gathered, kept_for = {}, {}
end

-- index_dead adds a delivery to the indexes of dead letters, or removes it (score false).
local function index_dead(P, company, id, sub, score, ms)
  local both = id .. '/' .. sub
  gather(P .. 'dd:' .. company .. '/' .. sub, id, score, ms)
  gather(P .. 'cd:' .. company, both, score, ms)
  gather(P .. 'dead', company .. '/' .. both, score, ms)
end

-- keep_bytes adds to the bytes that a company keeps. end_settling writes them.
local function keep_bytes(P, company, hour, n)
  local of = kept[P .. company] or {P = P, company = company, hours = {}}
  kept[P .. company] = of
  of.hours[hour] = (of.hours[hour] or 0) + n
end

-- unpack_event moves the records of a settled event back into the hash of its deliveries, because one of
-- them may change. ms is how long the hash is kept.
local function unpack_event(e, ms)
  local event, deliveries = e.P .. 'e:' .. e.company .. ':' .. e.id, e.P .. 'd:' .. e.company .. '/' .. e.id
  local value, records = split(redis.call('GET', event))
  if not records or records == '' then return end -- damaged
  redis.call('HSET', deliveries, unpack(unpack_records(records)))
  redis.call('PEXPIRE', deliveries, ms)
  redis.call('SET', event, value, 'KEEPTTL')
end

-- settle writes the records of an event's deliveries, and moves the event to the state that
-- follows from all its deliveries. A pending event and its deliveries have no expiry.
-- Fields of e:
--   P, company, id
--   records: subscriber and record in turn
--   matched: '' while the matching is not complete; else the number of deliveries, with an
--     'h' after it when a disabled subscriber was to have one
--   opened: change of the number of live deliveries
--   created: number of new deliveries
--   longer: change of longer over its records
--   dead: true when a delivery became dead
--   marks: the fields '#', '!' and HELD before this call
--   head: the first 14 bytes of the event
-- Returns the change of the company's number of pending events: -1, 0 or 1, for count_pending.
-- Call end_settling after the last event.
local function settle(e, now, keep, keep_dead, keep_event)
  local P, company, matched, marks, fields = e.P, e.company, e.matched, e.marks, e.records
  local deliveries, event = P .. 'd:' .. company .. '/' .. e.id, P .. 'e:' .. company .. ':' .. e.id
  if string.sub(matched, -1) == 'h' then marks[3] = '1' end
  if e.opened ~= 0 then marks[1] = math.max(tonumber(marks[1] or 0) + e.opened, 0) end
  if e.dead then marks[2] = now end
  local head = e.head
  local damaged = type(head) == 'table' -- wrong type
  local state, accepted
  if not damaged then state, accepted = string.sub(head, 1, 1), tonumber(string.sub(head, 2, 14)) end
  local is = tonumber(marks[1] or 0) > 0 and MATCHED or SETTLED
  local ends = is == SETTLED and accepted and (state == MATCHED or state == READY and matched ~= '')
  if e.opened ~= 0 then fields[#fields + 1], fields[#fields + 2] = '#', marks[1] end
  if e.dead then fields[#fields + 1], fields[#fields + 2] = '!', now end
  if #fields > 0 then redis.call('HSET', deliveries, unpack(fields)) end
  if damaged then return 0 end
  -- The event is missing or compacted: nothing else would remove these late deliveries.
  if not accepted or state == COMPACTED then
    if tonumber(marks[1] or 0) > 0 then return 0 end
    if state == COMPACTED and not marks[2] then
      redis.call('UNLINK', deliveries)
    else
      redis.call('PEXPIRE', deliveries, keep_dead, 'NX')
    end
    return 0
  end
  local bytes = e.opened * OPEN_BYTES + e.longer
  if state ~= READY then
    bytes = bytes + e.created * DELIVERY_BYTES
  elseif matched ~= '' then
    bytes = bytes + math.max(tonumber(string.match(matched, '^%d+')) - 1, 0) * DELIVERY_BYTES
  end
  if bytes ~= 0 then keep_bytes(P, company, hour_of(accepted), bytes) end
  if state == READY and matched == '' then return 0 end
  if is == SETTLED then archives(P, company, e.id, SETTLED, now) end
  if ends and for_history == 0 and not (marks[2] or marks[3]) then
    compacts(P, company, string.format('%08x', math.floor(now / 1000)) .. e.id)
  end
  if marks[3] and string.sub(matched, -1) == 'h' then redis.call('HSET', deliveries, HELD, 1) end
  if is == SETTLED and (state ~= SETTLED or e.dead) then
    local ms = math.max(accepted + keep_event - now, for_history, 1000)
    if marks[2] then ms, keep = math.max(ms, keep_dead), math.max(keep, keep_dead) end
    redis.call('PEXPIRE', event, ms)
    redis.call('PEXPIRE', deliveries, keep)
  elseif is == SETTLED then -- a late write: the event was settled before
    redis.call('PEXPIRE', deliveries, keep, 'NX')
  end
  if is == state then return 0 end
  redis.call('SETRANGE', event, 0, is)
  if is == SETTLED then return -1 end
  if state ~= SETTLED then return 0 end
  redis.call('PERSIST', event)
  redis.call('PERSIST', deliveries)
  return 1
end

-- count_pending adds to a company's number of pending events. end_settling writes it.
local function count_pending(P, company, change)
  local of = pending[P .. company] or {P = P, company = company, change = 0}
  pending[P .. company] = of
  of.change = of.change + change
end

-- end_settling appends settled events to the lists that compact.lua and archive.lua read, and writes the numbers of pending events.
-- With a damaged list, the events are not compacted.
-- Returns the key prefixes of partitions whose owner is to be woken.
local function end_settling(now)
  for _, of in pairs(pending) do
    if of.change ~= 0 then
      redis.call('HINCRBY', of.P .. 'c:' .. of.company, 'pending', of.change)
      redis.call('INCRBY', of.P .. 'pending', of.change)
    end
  end
  for _, of in pairs(kept) do
    for hour, n in pairs(of.hours) do add_bytes(of.P, of.company, hour, n) end
  end
  for _, of in pairs(to_compact) do
    local length = redis.pcall('RPUSH', of.P .. 'done:' .. of.company, unpack(of))
    if length == #of then redis.call('ZADD', of.P .. 'compact', tonumber(string.sub(of[1], 1, 8), 16) * 1000, of.company) end
  end
  for P, of in pairs(to_archive) do redis.pcall('RPUSH', P .. 'history', unpack(of)) end
  local out = {}
  for P in pairs(woken) do out[#out + 1] = P end
  return out
end
