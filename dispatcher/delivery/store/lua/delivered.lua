-- Writes new deliveries that were delivered at once: what record.lua does of
-- them, for many events in one call.
-- KEYS: 1 a partition's due set, 2 a key that never exists
-- ARGV: 1 now ms, 2 ms that a delivery is kept, 3 ms that a dead one is kept, 4 ms
--   that an event is kept after it was accepted, 5 replica, 6 number of companies,
--   7 of events, 8 of subscribers; then for each company key prefix and id; for each
--   event the number of its company, its id, and what settle takes of its matching;
--   for each subscriber the number of its company and its id; for each delivery, in
--   the order of their events, the numbers of its event and its subscriber, created
--   ms, and the record
-- Returns the key prefixes of partitions that need a wake-up; then for each delivery
-- 1, or the record found when there is one already, or DAMAGED.
local now, keep, keep_dead, keep_event = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local replica, companies, events, subs = ARGV[5], tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8])
local event0 = 8 + 2 * companies
local sub0 = event0 + 3 * events

local function of_company(c) return ARGV[7 + 2 * c], ARGV[8 + 2 * c] end

local prefixes = {}
for c = 1, companies do prefixes[c] = of_company(c) end
check(prefixes)

local out, all = {0}, {}

-- read reads the deliveries of an event whose arguments begin at first, gathers what is
-- to be written, and returns where those of the next event begin.
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
