-- Writes a replica's heartbeat, and reads the heartbeats of all replicas. All times are
-- Redis's, because the clocks of replicas may differ. Heartbeats do not expire: a takeover finds
-- the notes of a lost replica by its heartbeat, even after all replicas were down for long.
-- KEYS: 1 a shard's heartbeats, 2 a key that never exists
-- ARGV: 1 key prefix, 2 replica
-- Returns {now ms, replica, ms of its last heartbeat, ...}.
local P, replica = ARGV[1], ARGV[2]
check({P})
local now = clock()
redis.call('ZADD', KEYS[1], now, replica)
redis.call('HSET', P .. 'reads', replica, OLDEST .. '-' .. NEWEST)
local out = {now}
local all = redis.call('ZRANGE', KEYS[1], 0, -1, 'WITHSCORES')
for i = 1, #all do out[#out + 1] = all[i] end
return out
