-- Reads the stored format of a partition and who reads it, and raises it unless a
-- living replica could not read it then.
-- KEYS: 1 the partition's due set, 2 a key that never exists
-- ARGV: 1 key prefix, 2 format to raise it to, 0 to leave it, 3 ms without a
--   heartbeat after which a replica does not count as living
-- Returns {format before, format now, replica, the formats it reads, ...} of the
-- living replicas whose heartbeats are kept beside this partition.
local P, to = ARGV[1], tonumber(ARGV[2])
if to > 0 then check({P}) end
local before = tonumber(redis.call('GET', P .. 'format') or 1)
local out, raise = {before, before}, to > before
for _, replica in ipairs(redis.call('ZRANGEBYSCORE', P .. 'replicas', clock() - ARGV[3], '+inf')) do
  local reads = redis.call('HGET', P .. 'reads', replica) or '1-1'
  local oldest, newest = string.match(reads, '(%d+)-(%d+)')
  if to < tonumber(oldest) or to > tonumber(newest) then raise = false end
  out[#out + 1], out[#out + 2] = replica, reads
end
if raise then
  redis.call('SET', P .. 'format', to)
  out[2] = to
end
return out
