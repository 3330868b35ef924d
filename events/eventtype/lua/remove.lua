#!lua flags=allow-oom
-- Removes the documentation of an event type.
-- KEYS: 1 all types, 2 a key that never exists
-- ARGV: 1 name, 2 "1" when the stored text must equal 3, 3 a text or "" for none
-- Returns 1 when it was removed, 0 when there is none, -1 when the stored text differs from
--   3.
local old = redis.call('HGET', KEYS[1], ARGV[1])
if ARGV[2] == '1' and (old or '') ~= ARGV[3] then return -1 end
if not old then return 0 end
redis.call('HDEL', KEYS[1], ARGV[1])
redis.call('HINCRBY', KEYS[1], '#', -#old - #ARGV[1])
return 1
