-- Replaces a saved response if it is still the response that the caller read. The expiry
-- does not change.
-- KEYS[1] the key's hash: f (fingerprint), r (the saved response)
-- ARGV[1] response read, ARGV[2] response to write
-- Returns 1, or 0 when the response has changed or is missing.
if redis.call('HGET', KEYS[1], 'r') ~= ARGV[1] then
  return 0
end
redis.call('HSET', KEYS[1], 'r', ARGV[2])
return 1
