#!lua flags=allow-oom
-- Removes the documentation of an event type.
-- KEYS: 1 all types, 2 a key that never exists
-- ARGV: 1 name, 2 accepted revisions, each after a comma; '' for any
-- Returns 1 when it was removed, 0 when there is none, -1 when it has another revision.
local old = redis.call('HGET', KEYS[1], ARGV[1])
if ARGV[2] ~= '' and not (old and string.find(ARGV[2], string.sub(redis.sha1hex(old), 1, 16), 1, true)) then return -1 end
if not old then return 0 end
redis.call('HDEL', KEYS[1], ARGV[1])
redis.call('HINCRBY', KEYS[1], '#', -#old - #ARGV[1])
return 1
