-- Settles events of which all deliveries were delivered at the first attempt and are recorded together, and writes the
-- records into the values of the events. Most events end here. It leaves alone an event that is not READY, that has
-- deliveries of earlier calls, or that expires so soon that it is not compacted: record.lua writes it.
-- KEYS: 1 a partition's due set, 2 a key that never exists
-- ARGV: 1 now ms or '', 2 ms that a delivery is kept, 3 ms that an event is kept after it was accepted, 4 ms that a
--   delivered event is kept before it is compacted, 5 as ARGV 5 of record.lua, 6 number of groups of events of one
--   company with the same subscribers; then for each group: key prefix, company, number of subscribers, the
--   subscribers; then for each event, each at most once: number of its group, id, created ms of its deliveries, bytes of
--   its deliveries that are not in OVERHEAD, and their records as at the end of its value
-- Returns for each event 1 when it was written, else 0.
local now, keep, keep_event, keep_delivered = time_of(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
for_history = tonumber(ARGV[5])

local groups, prefixes, first = {}, {}, 7
for g = 1, tonumber(ARGV[6]) do
  local P, company, n = ARGV[first], ARGV[first + 1], tonumber(ARGV[first + 2])
  groups[g], prefixes[g] = {P = P, company = company, subs = first + 3, last = first + 2 + n, created = {}}, P
  first = first + 3 + n
end
check(prefixes)
for _, of in ipairs(groups) do -- fails for a damaged key, before anything is written
  redis.call('HEXISTS', of.P .. 'c:' .. of.company, 'pending')
end

local keys, deliveries = {}, {}
for a = first, #ARGV, 5 do
  local of = groups[tonumber(ARGV[a])]
  keys[#keys + 1] = of.P .. 'e:' .. of.company .. ':' .. ARGV[a + 1]
  deliveries[#deliveries + 1] = of.P .. 'd:' .. of.company .. '/' .. ARGV[a + 1]
end
local values = redis.call('MGET', unpack(keys))
local alone = redis.call('EXISTS', unpack(deliveries)) == 0

local out, ms, second = {}, {}, string.format('%08x', math.floor(now / 1000))
for i, value in ipairs(values) do
  local a = first + 5 * (i - 1)
  local accepted = value and string.sub(value, 1, 1) == READY and tonumber(string.sub(value, 2, 14))
  ms[i] = accepted and math.max(accepted + keep_event - now, for_history, 1000)
  out[i] = ms[i] and ms[i] >= keep_delivered and (alone or redis.call('EXISTS', deliveries[i]) == 0) and 1 or 0
  if out[i] == 1 then
    local of, bytes = groups[tonumber(ARGV[a])], tonumber(ARGV[a + 3])
    of.created[#of.created + 1], of.created[#of.created + 2] = ARGV[a + 2], ARGV[a + 1]
    if bytes > 0 then keep_bytes(of.P, of.company, hour_of(accepted), bytes) end
    archives(of.P, of.company, ARGV[a + 1], SETTLED, now)
    if for_history == 0 then compacts(of.P, of.company, second .. ARGV[a + 1]) end
  end
end
for _, of in ipairs(groups) do
  for a = of.subs, #of.created > 0 and of.last or 0 do index(of.P .. 'da:' .. of.company .. '/' .. ARGV[a], of.created, keep, now) end
  count_pending(of.P, of.company, -#of.created / 2)
end
for i, value in ipairs(values) do
  if out[i] == 1 then redis.call('SET', keys[i], SETTLED .. string.sub(value, 2) .. ARGV[first + 5 * i - 1], 'PX', ms[i]) end
end
end_settling(now)
return out
