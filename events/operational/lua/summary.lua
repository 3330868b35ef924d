-- Writes the summary of suppressed notices, unless more were suppressed since the caller
-- read the count.
-- KEYS: 1 the partition's due set, 2 a key that never exists
-- ARGV: 1 key prefix, 2 company, 3 field of the suppressed notices, 4 its value as the
--   caller read it, 5 the summary, as a notice, or '' for none, 6 now (ms) or ''
-- Returns 1 when the owner is to be woken, -1 when more were suppressed meanwhile, else 0.
local P, company, key, value = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
check({P})
if redis.call('HGET', P .. 'ns:' .. company, key) ~= value then return -1 end
redis.call('HDEL', P .. 'ns:' .. company, key)
if ARGV[5] == '' then return 0 end
local scope, sub = string.match(key, '^(%a)/([^/]*)/')
local n = read_notice(ARGV[5])
local _
_, n.n, n.first, n.last = string.match(value, '^(%d+) (%d+) (%S+) (%S+)$')
n.here = scope == 'c' and wanted(P, company, n.type)
return write_notice(P, company, sub, n, time_of(ARGV[6]))
