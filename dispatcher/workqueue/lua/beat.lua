-- Writes a replica's heartbeat and reads everybody's. Redis's own clock is the
-- measure, so that replicas' clocks may differ.
-- KEYS: 1 a shard's heartbeats, 2 a key that never exists
-- ARGV: 1 replica
-- Returns {now ms, replica, ms of its last heartbeat, ...}.
local now = clock()
redis.call('ZADD', KEYS[1], now, ARGV[1])
redis.call('PEXPIRE', KEYS[1], 604800000)
local out = {now}
local all = redis.call('ZRANGE', KEYS[1], 0, -1, 'WITHSCORES')
for i = 1, #all do out[#out + 1] = all[i] end
return out
