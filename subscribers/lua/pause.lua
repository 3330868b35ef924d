-- Pauses a subscriber: all its deliveries wait. Or ends its pause: the owner of the partition serves them
-- within half a second. A second call changes nothing.
-- KEYS: 1 the partition's due set, 2 a key that never exists, 3 company's subscribers
-- ARGV: 1 uuid, 2 key prefix, 3 company, 4 reason of the pause; '' ends it
-- Returns 1, or 0 when there is no such subscriber.
if redis.call('HEXISTS', KEYS[3], ARGV[1]) == 0 then return 0 end
if ARGV[4] == '' then
  resume(ARGV[2], ARGV[3], ARGV[1])
else
  pause(ARGV[2], ARGV[3], ARGV[1], ARGV[4], clock())
end
return 1
