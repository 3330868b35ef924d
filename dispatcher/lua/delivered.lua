-- Writes new deliveries of one company's events that were delivered at once:
-- what record.lua does of them, for many in one call.
-- KEYS: 1 open, 2 delayed; then each event's deliveries hash; then each
--   subscriber's all index
-- ARGV: 1 now ms, 2 retention ms, 3 company, 4 number of events E, 5 number of
--   subscribers S; then for each event its id and '1' when its dispatch is
--   settled; then for each subscriber its uuid; then for each delivery the
--   numbers of its event and its subscriber, created ms, and the record
-- Returns for each delivery 1, or the record found when there is one already.
local keep, company, events, subs = tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
local out, entries, kept = {}, {}, {}
for a = 6 + 2 * events + subs, #ARGV, 4 do
  local e, s = tonumber(ARGV[a]), tonumber(ARGV[a + 1])
  local key, sub = KEYS[2 + e], ARGV[5 + 2 * events + s]
  if redis.call('HSETNX', key, sub, ARGV[a + 3]) == 1 then
    out[#out + 1] = 1
    if not kept[key] and redis.call('PTTL', key) < 0 then redis.call('PEXPIRE', key, keep) end
    kept[key] = true
    local list = entries[s] or {}
    list[#list + 1], list[#list + 2] = ARGV[a + 2], ARGV[4 + 2 * e]
    entries[s] = list
  else
    out[#out + 1] = redis.call('HGET', key, sub)
  end
end
for s, list in pairs(entries) do
  local key = KEYS[2 + events + s]
  redis.call('ZADD', key, unpack(list))
  local old = redis.call('ZRANGEBYSCORE', key, '-inf', ARGV[1] - keep, 'LIMIT', 0, 4 + #list)
  if #old > 0 then redis.call('ZREM', key, unpack(old)) end
  redis.call('PEXPIRE', key, keep)
end
local settled = {}
for e = 1, events do
  if ARGV[5 + 2 * e] == '1' then settled[#settled + 1] = company .. '/' .. ARGV[4 + 2 * e] end
end
if #settled > 0 then
  redis.call('ZREM', KEYS[1], unpack(settled))
  redis.call('ZREM', KEYS[2], unpack(settled))
end
return out
