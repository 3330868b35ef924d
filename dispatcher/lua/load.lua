-- Loads one company's events for their dispatch.
-- KEYS[1] open zset, KEYS[2] the company's subscribers hash, then each event's
--   deliveries hash, then the strings of those events whose body is wanted
-- ARGV[1] byte budget for bodies (the first is always loaded), ARGV[2] for each
--   event 1 when its body is wanted, else 0; then the event references
-- Returns {subscriber version, entry...}; an entry is 0 when the event is
--   settled, 1 when the budget is used up (load it in another call), or
--   {event string or false, subscriber uuids that have a delivery already}
local out = {redis.call('HGET', KEYS[2], 'v') or '0'}
local budget, wanted = tonumber(ARGV[1]), ARGV[2]
local open = redis.call('ZMSCORE', KEYS[1], unpack(ARGV, 3))
local used, last = 0, 2 + #wanted
for i = 1, #wanted do
  local wants = string.byte(wanted, i) == 49
  if wants then last = last + 1 end
  if not open[i] then
    out[i + 1] = 0
  elseif wants and used > 0 and used >= budget then
    out[i + 1] = 1
  else
    local body = wants and redis.call('GET', KEYS[last])
    if wants then used = used + (body and #body or 1) end
    out[i + 1] = {body, redis.call('HKEYS', KEYS[i + 2])}
  end
end
return out
