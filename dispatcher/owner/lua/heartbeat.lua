-- Writes a replica's heartbeat, and reads the heartbeats of all replicas. All times are Redis's,
-- because the clocks of replicas may differ.
-- KEYS: 1 a shard's heartbeats, 2 a key that never exists
-- ARGV: 1 key prefix, 2 replica, 3 '1' if it is leaving: another replica may have removed its mark with a
--   heartbeat that came late
-- Returns {now ms, run id of the server, replica, ms of its last heartbeat, '1' if it is leaving else '', ...}.
local P, replica = ARGV[1], ARGV[2]
check({P})
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
redis.call('ZADD', KEYS[1], now, replica)
if ARGV[3] == '1' then redis.call('SADD', P .. 'leaving', replica) end
redis.call('HSET', P .. 'reads', replica, OLDEST .. '-' .. NEWEST)
local info = redis.pcall('INFO', 'server') -- the Redis of a trial in memory has none
local out = {now, string.match(type(info) == 'string' and info or '', 'run_id:(%x+)') or ''}
local all = redis.call('ZRANGE', KEYS[1], 0, -1, 'WITHSCORES')
for i = 1, #all, 2 do
  out[#out + 1], out[#out + 2] = all[i], all[i + 1]
  out[#out + 1] = redis.call('SISMEMBER', P .. 'leaving', all[i]) == 1 and '1' or ''
end
return out
