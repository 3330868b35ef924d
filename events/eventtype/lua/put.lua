#!lua
-- Stores the documentation of an event type, within the limits for all types.
-- KEYS: 1 all types, 2 a key that never exists
-- ARGV: 1 name, 2 the text to store, 3 accepted revisions, each after a comma; '' for any, 4
--       maximum of types, 5 maximum of bytes
-- Returns 1 when the type had no stored text, 0 when its text was replaced, -1 when the
-- stored text has another revision, -2 when a limit is reached.
local old = redis.call('HGET', KEYS[1], ARGV[1]) or ''
if ARGV[3] ~= '' and (old == '' or not string.find(ARGV[3], string.sub(redis.sha1hex(old), 1, 16), 1, true)) then return -1 end
local bytes = tonumber(redis.call('HGET', KEYS[1], '#') or 0)
local more = #ARGV[2] - #old
if old == '' then
  more = more + #ARGV[1]
  if redis.call('HLEN', KEYS[1]) > tonumber(ARGV[4]) then return -2 end -- one field is #
end
if more > 0 and bytes + more > tonumber(ARGV[5]) then return -2 end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2], '#', bytes + more)
return old == '' and 1 or 0
