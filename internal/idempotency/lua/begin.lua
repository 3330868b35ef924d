-- Claims an idempotency key, or returns its state.
-- KEYS[1] the key's hash: f (fingerprint), r (the saved response, if there is one)
-- ARGV[1] fingerprint, ARGV[2] ms after which the claim expires
-- Returns {"claimed"}, {"busy"}, {"reused"} or {"saved", response}.
local known = redis.call('HMGET', KEYS[1], 'f', 'r')
if not known[1] then
  redis.call('HSET', KEYS[1], 'f', ARGV[1])
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  return {'claimed'}
end
if known[1] ~= ARGV[1] then
  return {'reused'}
end
if known[2] then
  return {'saved', known[2]}
end
return {'busy'}
