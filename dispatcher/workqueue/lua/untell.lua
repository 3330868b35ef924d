-- Removes what the owner of a partition was told, and serves now.
-- KEYS: 1 the partition's due set, 2 a key that never exists
-- ARGV: 1 key prefix, 2 token of the owner; then the entries
-- Returns 0 when the partition has another owner, which serves them, else 1.
local P = ARGV[1]
check({P})
if redis.call('GET', P .. 'owner') ~= ARGV[2] then return 0 end
for i = 3, #ARGV do redis.call('SREM', P .. 'told', ARGV[i]) end
return 1
