-- Writes new deliveries that succeeded at the first attempt. The effect is that of
-- record.lua, for many events in one call.
-- KEYS: 1 a partition's due set, 2 a key that never exists
-- ARGV: 1 now ms, 2 ms that a delivery is kept, 3 ms that a dead delivery is kept, 4 ms
--   that an event is kept after it was accepted, 5 replica, 6 number of companies,
--   7 number of events, 8 number of subscribers; then for each company: key prefix, id;
--   for each event: number of its company, id, result of its matching (the field matched
--   of settle); for each subscriber: number of its company, id; for each delivery, in the
--   order of the events: number of its event, number of its subscriber, created ms, record
-- Returns the key prefixes of partitions that need a wake-up; then for each delivery
-- 1 when it was written, the stored record when it existed already, or DAMAGED.
local now, keep, keep_dead, keep_event = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local replica, companies, events, subs = ARGV[5], tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8])
local event0 = 8 + 2 * companies
local sub0 = event0 + 3 * events

local function of_company(c) return ARGV[7 + 2 * c], ARGV[8 + 2 * c] end

local prefixes = {}
for c = 1, companies do prefixes[c] = of_company(c) end
check(prefixes)

local out, all = {0}, {}

-- read reads the deliveries of one event. The arguments of the deliveries begin at first.
-- It collects the records to write and returns where the arguments of the next event begin.
local function read(number, first)
  local at = event0 + 3 * number
  local P, company = of_company(tonumber(ARGV[at - 2]))
  local e = {P = P, company = company, id = ARGV[at - 1], matched = ARGV[at], opened = 0, records = {}}
  local fields, a = {}, first
  while tonumber(ARGV[a]) == number do
    fields[#fields + 1] = ARGV[sub0 + 2 * ARGV[a + 1]]
    a = a + 4
  end
  local n = #fields
  fields[n + 1], fields[n + 2], fields[n + 3] = '#', '!', HELD
  local found = redis.pcall('HMGET', P .. 'd:' .. company .. '/' .. e.id, unpack(fields))
  e.damaged = found.err ~= nil
  for i = 1, n do
    out[#out + 1] = e.damaged and DAMAGED or found[i] or 1
    if not found[i] and not e.damaged then
      local at = first + 4 * (i - 1)
      e.records[#e.records + 1], e.records[#e.records + 2] = fields[i], ARGV[at + 3]
      gather(P .. 'da:' .. company .. '/' .. fields[i], e.id, ARGV[at + 2], keep)
    end
  end
  e.marks = {found[n + 1], found[n + 2], found[n + 3]}
  all[number] = e
  return a
end

local at = sub0 + 2 * subs + 1
for number = 1, events do at = read(number, at) end
flush(now)
local grown = {}
for number, e in ipairs(all) do
  local c = tonumber(ARGV[event0 + 3 * number - 2])
  if not e.damaged then grown[c] = (grown[c] or 0) + settle(e, replica, now, keep, keep_dead, keep_event) end
end
for c, change in pairs(grown) do
  local P, company = of_company(c)
  count_pending(P, company, change)
end
out[1] = end_settling(now)
return out
