-- Ends the pause of a subscriber, if there is one. Waiting deliveries become due; the owner
-- of the partition serves them within half a second.
-- KEYS: 1 the partition's due set, 2 a key that never exists, 3 company's subscribers
-- ARGV: 1 uuid, 2 key prefix, 3 company
-- Returns 1, or 0 when there is no such subscriber.
if redis.call('HEXISTS', KEYS[3], ARGV[1]) == 0 then return 0 end
resume(ARGV[2], ARGV[3], ARGV[1], clock())
return 1
