-- Replaces a saved response if it still is what the caller read; it lives on
-- as long as it would have.
-- KEYS[1] the key's hash: f (fingerprint), r (the saved response)
-- ARGV[1] response read, ARGV[2] response to write
-- Returns 1, or 0 when it has changed or gone meanwhile.
if redis.call('HGET', KEYS[1], 'r') ~= ARGV[1] then
  return 0
end
redis.call('HSET', KEYS[1], 'r', ARGV[2])
return 1
