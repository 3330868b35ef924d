-- Moves due endpoint queues and jobs into the turns of their companies.
-- KEYS: 1 the partition's due set, 2 a key that never exists
-- ARGV: 1 key prefix, 2 maximum of entries
-- Returns 1 when the caller must have the partition served.
local P = ARGV[1]
check({P})
return promote(P, tonumber(ARGV[2]), work_time(P)) > 0 and 1 or 0
