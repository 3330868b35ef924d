-- Replaces a subscriber's JSON if it still is what the caller read. Running it
-- again changes nothing.
-- KEYS: 1 company's subscribers, 2 company's URLs, 3 subscriber's health
-- ARGV: 1 uuid, 2 JSON read, 3 JSON to write, 4 URL read, 5 URL to write,
--       6 "1" to forget the health
-- Returns {OK}, {GONE}, {TAKEN} (another has the URL) or {CHANGED, current JSON}.
local current = redis.call('HGET', KEYS[1], ARGV[1])
if not current then
  return {'GONE'}
end
if current == ARGV[3] then
  return {'OK'}
end
if current ~= ARGV[2] then
  return {'CHANGED', current}
end
if ARGV[4] ~= ARGV[5] then
  if redis.call('HEXISTS', KEYS[2], ARGV[5]) == 1 then
    return {'TAKEN'}
  end
  redis.call('HDEL', KEYS[2], ARGV[4])
  redis.call('HSET', KEYS[2], ARGV[5], ARGV[1])
end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
if ARGV[6] == '1' then
  redis.call('DEL', KEYS[3])
end
touch(KEYS[1])
return {'OK'}
