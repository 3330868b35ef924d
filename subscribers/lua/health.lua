-- Adds what was seen of a subscriber's endpoint to its health.
-- KEYS: 1 subscriber's health, 2 company's subscribers
-- ARGV: 1 uuid, 2 "1" after a success, 3 failures since, 4 at (ms),
--       5 failures in a row that make it failing, 6 ms of failing that expire
--       it, 7 ms until expired is reported again, 8 ms to live
-- Returns {transition, state, failures in a row, failing since, last success}.
if redis.call('HEXISTS', KEYS[2], ARGV[1]) == 0 then
  return {'none', 'healthy', '0', '', ''}
end
local h = redis.call('HMGET', KEYS[1], 'state', 'fails', 'since', 'last', 'expired')
local was, fails, since, last, expired = h[1] or 'healthy', h[2] or 0, h[3], h[4], h[5]
local at, failures, state = tonumber(ARGV[4]), tonumber(ARGV[3]), was

if ARGV[2] == '1' then
  state, fails, since, expired = 'healthy', 0, false, false
  if not last or at > tonumber(last) then
    last = ARGV[4]
  end
end
fails = fails + failures
if failures > 0 then
  since = since or ARGV[4]
  if fails >= tonumber(ARGV[5]) then
    state = 'failing'
  end
end

local transition = 'none'
if state ~= was then
  transition = state == 'failing' and 'failing' or 'recovered'
elseif state == 'failing' and at - since >= tonumber(ARGV[6])
  and (not expired or at - expired >= tonumber(ARGV[7])) then
  transition, expired = 'expired', ARGV[4]
end

fails = string.format('%.0f', fails)
redis.call('DEL', KEYS[1])
redis.call('HSET', KEYS[1], 'state', state, 'fails', fails)
for field, value in pairs({since = since, last = last, expired = expired}) do
  if value then
    redis.call('HSET', KEYS[1], field, value)
  end
end
redis.call('PEXPIRE', KEYS[1], ARGV[8])
return {transition, state, fails, since or '', last or ''}
