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
-- 1, or the record found when there is one already.
local now, keep, keep_dead, keep_event = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local replica, companies, events, subs = ARGV[5], tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8])
local event0 = 8 + 2 * companies
local sub0 = event0 + 3 * events

local function of_company(c) return ARGV[7 + 2 * c], ARGV[8 + 2 * c] end

local prefixes = {}
for c = 1, companies do prefixes[c] = of_company(c) end
check(prefixes)

local out, entries, marks = {0}, {}, {}

-- write writes the deliveries of an event whose arguments begin at first, and
-- returns where those of the next event do.
local function write(e, key, first)
  local fields, a = {}, first
  while tonumber(ARGV[a]) == e do
    fields[#fields + 1] = ARGV[sub0 + 2 * ARGV[a + 1]]
    a = a + 4
  end
  local n, records = #fields, {}
  fields[n + 1], fields[n + 2], fields[n + 3] = '#', '!', HELD
  local found = redis.call('HMGET', key, unpack(fields))
  for i = 1, n do
    out[#out + 1] = found[i] or 1
    if not found[i] then
      local at = first + 4 * (i - 1)
      local s = tonumber(ARGV[at + 1])
      records[#records + 1], records[#records + 2] = fields[i], ARGV[at + 3]
      entries[s] = entries[s] or {}
      table.insert(entries[s], ARGV[at + 2])
      table.insert(entries[s], ARGV[event0 + 3 * e - 1])
    end
  end
  if #records > 0 then redis.call('HSET', key, unpack(records)) end
  marks[e] = {found[n + 1], found[n + 2], found[n + 3]}
  return a
end

local at = sub0 + 2 * subs + 1
for e = 1, events do
  local P, company = of_company(tonumber(ARGV[event0 + 3 * e - 2]))
  at = write(e, P .. 'd:' .. company .. '/' .. ARGV[event0 + 3 * e - 1], at)
end
for s, list in pairs(entries) do
  local P, company = of_company(tonumber(ARGV[sub0 + 2 * s - 1]))
  local key = P .. 'da:' .. company .. '/' .. ARGV[sub0 + 2 * s]
  redis.call('ZADD', key, unpack(list))
  local old = redis.call('ZRANGEBYSCORE', key, '-inf', now - keep, 'LIMIT', 0, 4 + #list)
  if #old > 0 then redis.call('ZREM', key, unpack(old)) end
  redis.call('PEXPIRE', key, keep)
end
local grown = {}
for e = 1, events do
  local at = event0 + 3 * e
  if ARGV[at] ~= '' then
    local c = tonumber(ARGV[at - 2])
    local P, company = of_company(c)
    grown[c] = (grown[c] or 0) + settle(P, replica, company, ARGV[at - 1], ARGV[at], 0, false, now, keep, keep_dead, keep_event, marks[e])
  end
end
for c, change in pairs(grown) do
  local P, company = of_company(c)
  count_pending(P, company, change)
end
out[1] = end_settling(now)
return out
