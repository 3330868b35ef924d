-- Part of every script that changes a company's subscribers. touch raises the version
-- (field v of the hash at key), at least to Redis's time in µs. So the version exceeds
-- every version that was read before, even after a backup was restored.
local function touch(key)
  local time = redis.call('TIME')
  local now = time[1] * 1000000 + time[2]
  local version = math.max((redis.call('HGET', key, 'v') or 0) + 1, now)
  redis.call('HSET', key, 'v', string.format('%.0f', version))
end
