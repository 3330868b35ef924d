-- Gives a claimed key back, so that the request can be sent again at once.
-- KEYS[1] the key's hash: f (fingerprint), r (the saved response)
-- ARGV[1] fingerprint
-- Returns 1 when given back, 0 when the claim is another's or has a response.
local known = redis.call('HMGET', KEYS[1], 'f', 'r')
if known[2] or known[1] ~= ARGV[1] then
  return 0
end
return redis.call('DEL', KEYS[1])
