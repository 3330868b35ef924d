-- Frees a claimed key, so that the request can be sent again at once.
-- KEYS[1] the key's hash: f (fingerprint), r (the saved response)
-- ARGV[1] fingerprint
-- Returns 1 when freed, 0 when the claim has a response or is not of this fingerprint.
local known = redis.call('HMGET', KEYS[1], 'f', 'r')
if known[2] or known[1] ~= ARGV[1] then
  return 0
end
return redis.call('DEL', KEYS[1])
