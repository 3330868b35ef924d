-- Prepended to every script that changes a company's subscribers.
-- touch raises the version (field v of the hash at key). It is at least Redis's
-- time in µs: so it stays ahead of every version that was ever read, also
-- after the hash of a company without subscribers expired or a backup was
-- restored.
local function touch(key)
  local time = redis.call('TIME')
  local now = time[1] * 1000000 + time[2]
  local version = math.max((redis.call('HGET', key, 'v') or 0) + 1, now)
  redis.call('HSET', key, 'v', string.format('%.0f', version))
end
