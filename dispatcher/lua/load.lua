-- Loads one company's events for their dispatch.
-- KEYS[1] open zset, KEYS[2] the company's subscribers hash,
--   then for each event: its string and its deliveries hash
-- ARGV[1] byte budget for bodies (the first event is always loaded)
-- ARGV[2..] event references, in the order of KEYS
-- Returns {subscriber version, entry...}; an entry is 0 when the event is
--   settled, 1 when the budget is used up (load it in another call), or
--   {event string or false, subscriber uuids that have a delivery already}
local out = {redis.call('HGET', KEYS[2], 'v') or '0'}
local open = redis.call('ZMSCORE', KEYS[1], unpack(ARGV, 2))
local used = 0
local budget = tonumber(ARGV[1])
for i = 2, #ARGV do
  if used > 0 and used >= budget then
    out[i] = 1
  elseif not open[i - 1] then
    out[i] = 0
  else
    local body = redis.call('GET', KEYS[2 * i - 1])
    used = used + (body and #body or 1)
    out[i] = {body, redis.call('HKEYS', KEYS[2 * i])}
  end
end
return out
