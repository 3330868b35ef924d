-- Adds a sample of a subscriber's endpoint to its health.
-- KEYS: 1 the partition's due set, 2 a key that never exists, 3 subscriber's
--       health, 4 company's subscribers
-- ARGV: 1 uuid, 2 "1" when an attempt succeeded, 3 failures after the last success, 4 time
--       of the sample (ms) or '', 5 failures in a row after which the state is failing, 6 ms of
--       failing after which it expires, 7 ms that the health is kept, 8 key prefix, 9
--       company, 10 time of the sample (RFC 3339), 11 and 12 the notices for failing and for
--       recovered ('' for none). In the notices, the script replaces @since by the ms of the
--       first failure, "@failingSince" by its time and "@failures" by the failures in a row,
--       13 number of the call: a call that is repeated after a lost reply changes nothing, 14 the class of the last failure
-- Returns {transition, state, failures in a row, failing since, last success}.
if redis.call('HEXISTS', KEYS[4], ARGV[1]) == 0 then
  return {'none', 'healthy', '0', '', ''}
end
local h = redis.call('HMGET', KEYS[3], 'state', 'fails', 'since', 'last', 'sincetext', 'call')
local was, fails, since, last = h[1] or 'healthy', h[2] or 0, h[3], h[4]
local call, said = string.match(h[6] or '', '^(%S+) (%S+)$')
if call == ARGV[13] then return {said, was, fails, since or '', last or ''} end
local began, text = since, h[5] or ''
local at, failures, state = time_of(ARGV[4]), tonumber(ARGV[3]), was
local stamp = string.format('%.0f', at)

if ARGV[2] == '1' then
  state, fails, since = 'healthy', 0, false
  if not last or at > tonumber(last) then
    last = stamp
  end
end
fails = fails + failures
if failures > 0 then
  if not since then since, text = stamp, ARGV[10] end
  if fails >= tonumber(ARGV[5]) then
    state = 'failing'
  end
end

local transition = 'none'
if state ~= was then
  transition = state == 'failing' and 'failing' or 'recovered'
elseif state == 'failing' and at - since >= tonumber(ARGV[6]) then
  transition = 'expired'
end

if transition == 'failing' or transition == 'recovered' then
  changed(ARGV[8], ARGV[9] .. '/' .. ARGV[1], transition, at)
end
local failing = ARGV[8] .. 'fs:' .. ARGV[9]
if state == 'failing' then
  -- The set is for display only: a damaged key must not fail the script.
  redis.pcall('ZADD', failing, at, ARGV[1])
  redis.pcall('ZREMRANGEBYSCORE', failing, '-inf', at - ARGV[7])
  redis.pcall('PEXPIRE', failing, ARGV[7])
else
  redis.pcall('ZREM', failing, ARGV[1])
end

fails = string.format('%.0f', fails)
redis.call('DEL', KEYS[3])
redis.call('HSET', KEYS[3], 'state', state, 'fails', fails, 'call', ARGV[13] .. ' ' .. transition)
for field, value in pairs({since = since, sincetext = since and text, last = last, error = failures > 0 and ARGV[14]}) do
  if value then
    redis.call('HSET', KEYS[3], field, value)
  end
end
redis.call('PEXPIRE', KEYS[3], ARGV[7])

local change_notice = transition == 'failing' and ARGV[11] or transition == 'recovered' and ARGV[12]
if change_notice then
  change_notice = string.gsub(change_notice, '@since', transition == 'failing' and since or began or '0')
  change_notice = string.gsub(change_notice, '@failingSince', text)
  change_notice = string.gsub(change_notice, '"@failures"', fails)
  notice(ARGV[8], ARGV[9], ARGV[1], change_notice, at)
end
return {transition, state, fails, since or '', last or ''}
