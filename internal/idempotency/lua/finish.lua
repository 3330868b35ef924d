-- Replaces a claim by its answer, if the company has the memory for it.
-- KEYS[1] an idempotency key, KEYS[2] the company's counters (c:), KEYS[3] its bytes of answers by hour
-- ARGV[1] the claim, ARGV[2] the claim with the answer, ARGV[3] ms until the answer expires,
-- ARGV[4] bytes that are free on the server
-- The script also writes a claim that has expired. Without the memory it frees the key.
-- Returns 1 when the answer is kept, else 0.
local value = redis.call('GET', KEYS[1])
if value == ARGV[2] then return 1 end -- the call is repeated
if value and value ~= ARGV[1] then return 0 end
local hour, size = math.floor(redis.call('TIME')[1] / 3600), #ARGV[2] + 100
local events, answers = tonumber(redis.call('HGET', KEYS[2], 'bytes') or 0), 0
local hours = redis.call('HGETALL', KEYS[3])
for i = 1, #hours, 2 do
  if tonumber(hours[i]) < hour - tonumber(ARGV[3]) / 3600000 then
    redis.call('HDEL', KEYS[3], hours[i])
  else
    answers = answers + tonumber(hours[i + 1])
  end
end
if events + answers + size > tonumber(ARGV[4]) - size then
  redis.call('DEL', KEYS[1])
  return 0
end
redis.call('HINCRBY', KEYS[3], hour, size)
-- A company without events gets the field with its first one.
if redis.call('EXISTS', KEYS[2]) == 1 then redis.call('HSET', KEYS[2], 'answers', answers + size) end
redis.call('PEXPIRE', KEYS[3], ARGV[3])
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
return 1
