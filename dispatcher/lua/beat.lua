-- Says that a replica is alive, and which others have stopped saying so.
-- Redis's own clock is the measure, so that replicas' clocks may differ.
-- KEYS[1] replicas zset
-- ARGV[1] replica, ARGV[2] ms of silence that count as dead
-- Returns the silent replicas.
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
redis.call('ZADD', KEYS[1], now, ARGV[1])
redis.call('PEXPIRE', KEYS[1], 604800000)
return redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now - ARGV[2])
