-- Adds a sample of a subscriber's endpoint to its health.
-- KEYS: 1 the partition's due set, 2 a key that never exists, 3 subscriber's
--       health, 4 company's subscribers
-- ARGV: 1 uuid, 2 "1" when an attempt succeeded, 3 failures after the last success, 4 time
--       of the sample (ms), 5 failures in a row after which the state is failing, 6 ms of
--       failing after which it expires, 7 ms until the expiry is reported again, 8 ms that
--       the health is kept, 9 key prefix, 10 company, 11 time of the sample (RFC 3339), 12
--       and 13 the notices for failing and for recovered ('' for none). In the notices, the
--       script replaces @since by the ms of the first failure, "@failingSince" by its time
--       and "@failures" by the failures in a row.
-- Returns {transition, state, failures in a row, failing since, last success}.
if redis.call('HEXISTS', KEYS[4], ARGV[1]) == 0 then
  return {'none', 'healthy', '0', '', ''}
end
local h = redis.call('HMGET', KEYS[3], 'state', 'fails', 'since', 'last', 'expired', 'sincetext')
local was, fails, since, last, expired = h[1] or 'healthy', h[2] or 0, h[3], h[4], h[5]
local began, text = since, h[6] or ''
local at, failures, state = tonumber(ARGV[4]), tonumber(ARGV[3]), was

if ARGV[2] == '1' then
  state, fails, since, expired = 'healthy', 0, false, false
  if not last or at > tonumber(last) then
    last = ARGV[4]
  end
end
fails = fails + failures
if failures > 0 then
  if not since then since, text = ARGV[4], ARGV[11] end
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

if transition == 'failing' or transition == 'recovered' then
  changed(ARGV[9], ARGV[10] .. '/' .. ARGV[1], transition, at)
end
local failing = ARGV[9] .. 'fs:' .. ARGV[10]
if state == 'failing' then
  -- The set is for display only: a damaged key must not fail the script.
  redis.pcall('ZADD', failing, at, ARGV[1])
  redis.pcall('ZREMRANGEBYSCORE', failing, '-inf', at - ARGV[8])
  redis.pcall('PEXPIRE', failing, ARGV[8])
else
  redis.pcall('ZREM', failing, ARGV[1])
end

fails = string.format('%.0f', fails)
redis.call('DEL', KEYS[3])
redis.call('HSET', KEYS[3], 'state', state, 'fails', fails)
for field, value in pairs({since = since, sincetext = since and text, last = last, expired = expired}) do
  if value then
    redis.call('HSET', KEYS[3], field, value)
  end
end
redis.call('PEXPIRE', KEYS[3], ARGV[8])

local told = transition == 'failing' and ARGV[12] or transition == 'recovered' and ARGV[13]
if told then
  told = string.gsub(told, '@since', transition == 'failing' and since or began or '0')
  told = string.gsub(told, '@failingSince', text)
  told = string.gsub(told, '"@failures"', fails)
  notice(ARGV[9], ARGV[10], ARGV[1], told, ARGV[4])
end
return {transition, state, fails, since or '', last or ''}
