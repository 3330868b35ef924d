-- Loads events for their dispatch.
-- KEYS: for each company its partition's open set and its subscribers hash; then
--   each event's deliveries hash; then the strings of those events whose body is
--   wanted
-- ARGV[1] byte budget for bodies (the first is always loaded), [2] number of
--   companies; then for each event the number of its company, 1 when its body is
--   wanted, else 0, and its reference
-- Returns an entry for each event: 0 when it is settled, 1 when the budget is
--   used up (load it in another call), or {event string or false, subscriber
--   uuids that have a delivery already, version of its company's subscribers}
local budget, companies = tonumber(ARGV[1]), tonumber(ARGV[2])
local events = (#ARGV - 2) / 3
local out, versions = {}, {}
local used, body = 0, 2 * companies + events
for i = 1, events do
  local c, wanted = tonumber(ARGV[3 * i]), ARGV[3 * i + 1] == '1'
  if wanted then body = body + 1 end
  if not redis.call('ZSCORE', KEYS[2 * c - 1], ARGV[3 * i + 2]) then
    out[i] = 0
  elseif wanted and used > 0 and used >= budget then
    out[i] = 1
  else
    local text = wanted and redis.call('GET', KEYS[body])
    if wanted then used = used + (text and #text or 1) end
    if not versions[c] then versions[c] = redis.call('HGET', KEYS[2 * c], 'v') or '0' end
    out[i] = {text, redis.call('HKEYS', KEYS[2 * companies + i]), versions[c]}
  end
end
return out
