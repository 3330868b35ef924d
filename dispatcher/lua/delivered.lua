-- Writes new deliveries that were delivered at once: what record.lua does of
-- them, for many events in one call.
-- KEYS: for each company its partition's open and delayed set; then each event's
--   deliveries hash; then each subscriber's all index
-- ARGV: 1 now ms, 2 retention ms, 3 number of companies C, 4 of events E, 5 of
--   subscribers S; then each company; then for each event the number of its
--   company, its id, and '1' when its dispatch is settled; then each subscriber;
--   then for each delivery the numbers of its event and its subscriber, created
--   ms, and the record
-- Returns for each delivery 1, or the record found when there is one already.
local keep, companies, events, subs = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local event0, sub0 = 5 + companies, 5 + companies + 3 * events

local out, entries, kept = {}, {}, {}
for a = sub0 + subs + 1, #ARGV, 4 do
  local e, s = tonumber(ARGV[a]), tonumber(ARGV[a + 1])
  local key, sub = KEYS[2 * companies + e], ARGV[sub0 + s]
  if redis.call('HSETNX', key, sub, ARGV[a + 3]) == 1 then
    out[#out + 1] = 1
    if not kept[key] and redis.call('PTTL', key) < 0 then redis.call('PEXPIRE', key, keep) end
    kept[key] = true
    local list = entries[s] or {}
    list[#list + 1], list[#list + 2] = ARGV[a + 2], ARGV[event0 + 3 * e - 1]
    entries[s] = list
  else
    out[#out + 1] = redis.call('HGET', key, sub)
  end
end
for s, list in pairs(entries) do
  local key = KEYS[2 * companies + events + s]
  redis.call('ZADD', key, unpack(list))
  local old = redis.call('ZRANGEBYSCORE', key, '-inf', ARGV[1] - keep, 'LIMIT', 0, 4 + #list)
  if #old > 0 then redis.call('ZREM', key, unpack(old)) end
  redis.call('PEXPIRE', key, keep)
end

local settled = {}
for e = 1, events do
  local a = event0 + 3 * e
  if ARGV[a] == '1' then
    local c = tonumber(ARGV[a - 2])
    local list = settled[c] or {}
    list[#list + 1] = ARGV[5 + c] .. '/' .. ARGV[a - 1]
    settled[c] = list
  end
end
for c, list in pairs(settled) do
  redis.call('ZREM', KEYS[2 * c - 1], unpack(list))
  redis.call('ZREM', KEYS[2 * c], unpack(list))
end
return out
