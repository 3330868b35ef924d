-- Reads the stored format of a partition and the formats that live replicas read. Raises
-- the stored format, unless a live replica cannot read the new one.
-- KEYS: 1 the partition's due set, 2 a key that never exists
-- ARGV: 1 key prefix, 2 new format, 0 to change nothing, 3 ms without a heartbeat after
--   which a replica does not count as live
-- Returns {format, replica, the formats it reads, ...} of the live replicas that have their
-- heartbeats in this partition.
local P, to = ARGV[1], tonumber(ARGV[2])
if to > 0 then check({P}) end
local before = tonumber(redis.call('GET', P .. 'format') or 1)
local out, raise = {before}, to > before
for _, replica in ipairs(redis.call('ZRANGEBYSCORE', P .. 'replicas', clock() - ARGV[3], '+inf')) do
  local reads = redis.call('HGET', P .. 'reads', replica) or '1-1'
  local oldest, newest = string.match(reads, '(%d+)-(%d+)')
  if to < tonumber(oldest) or to > tonumber(newest) then raise = false end
  out[#out + 1], out[#out + 2] = replica, reads
end
if raise then
  redis.call('SET', P .. 'format', to)
  out[1] = to
end
return out
