-- Saves the response of a claimed key. The first response stays. The script does not change
-- a key that another request has claimed since.
-- KEYS[1] the key's hash: f (fingerprint), r (the saved response)
-- ARGV[1] fingerprint, ARGV[2] response, ARGV[3] ms that the response is kept
-- Returns 1 when saved, else 0.
local known = redis.call('HMGET', KEYS[1], 'f', 'r')
if known[2] or (known[1] and known[1] ~= ARGV[1]) then
  return 0
end
redis.call('HSET', KEYS[1], 'f', ARGV[1], 'r', ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return 1
