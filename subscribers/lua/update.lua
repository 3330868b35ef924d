-- Replaces a subscriber's JSON if it is still the JSON that the caller read. A second call
-- changes nothing. A call that fails half-way, for a damaged key, can be repeated: the JSON is written last.
-- KEYS: 1 the partition's due set, 2 a key that never exists, 3 company's
--       subscribers, 4 company's URLs, 5 subscriber's health
-- ARGV: 1 uuid, 2 JSON read, 3 JSON to write, 4 URL read, 5 URL to write, 6 "enabled" or
--       "disabled" when this call changes that, else '', 7 key prefix, 8 company, 9 the
--       notice of the change ('' for none), 10 now (ms) or '', 11 to 15 the settings of its
--       endpoint, in the order of configure, 16 number of its contacts
-- Returns {OK}, {GONE}, {TAKEN} (another subscriber has the URL) or {CHANGED, current
--   JSON}.
local current = redis.call('HGET', KEYS[3], ARGV[1])
if not current then
  return {'GONE'}
end
if current == ARGV[3] then
  return {'OK'}
end
if current ~= ARGV[2] then
  return {'CHANGED', current}
end
local state = ARGV[7] .. 'es:' .. ARGV[8] .. '/' .. ARGV[1]
if ARGV[4] ~= ARGV[5] then
  local owner = redis.call('HGET', KEYS[4], ARGV[5])
  if owner and owner ~= ARGV[1] then
    return {'TAKEN'}
  end
  -- Another endpoint: what was learned of the former one does not hold.
  redis.call('HDEL', state, 'fails')
  if tonumber(redis.call('HGET', state, 'until') or 0) < IN_ORDER then redis.call('HDEL', state, 'until') end
  redis.call('HDEL', KEYS[4], ARGV[4])
  redis.call('HSET', KEYS[4], ARGV[5], ARGV[1])
end
if ARGV[6] == 'disabled' then -- its deliveries wait: no time reaches IN_ORDER
  redis.call('HSET', state, 'until', IN_ORDER)
elseif ARGV[6] == 'enabled' then -- delete its health
  redis.call('HDEL', state, 'until')
  redis.call('DEL', KEYS[5])
  redis.call('ZREM', ARGV[7] .. 'fs:' .. ARGV[8], ARGV[1])
end
if ARGV[6] ~= '' then changed(ARGV[7], ARGV[8] .. '/' .. ARGV[1], ARGV[6], time_of(ARGV[10])) end
configure(ARGV[7], ARGV[8], ARGV[1], ARGV[11], ARGV[12], ARGV[13], ARGV[14], ARGV[15])
notice(ARGV[7], ARGV[8], ARGV[1], ARGV[9], time_of(ARGV[10]))
if ARGV[16] ~= '0' then redis.call('HSETNX', ARGV[7] .. 'ct', ARGV[8] .. '/' .. ARGV[1], '') end
redis.call('HSET', KEYS[3], ARGV[1], ARGV[3])
touch(KEYS[3])
return {'OK'}
