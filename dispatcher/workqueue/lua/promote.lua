-- Moves what became due into the turns of its companies.
-- KEYS: 1 the partition's due set, 2 a key that never exists
-- ARGV: 1 key prefix, 2 how many at most
-- Returns 1 when the partition has work to claim for which nobody else is coming.
local P = ARGV[1]
check({P})
return promote(P, tonumber(ARGV[2]), clock()) > 0 and 1 or 0
