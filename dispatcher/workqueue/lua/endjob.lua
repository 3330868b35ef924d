-- Ends an owner's note of a job, and schedules the job again when it is not done.
-- KEYS: 1 the partition's due set, 2 a key that never exists
-- ARGV: 1 key prefix, 2 token, 3 company, 4 job, 5 ms until the job is due again, '' when
--   it is done
-- Returns 1 when a wake-up must be enqueued.
local P, token, company, job = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
check({P})
local now = work_time(P)
local note = 'j:' .. company .. '/' .. job
if redis.call('HEXISTS', P .. 'n:' .. token, note) == 0 then
  return 0 -- taken over: the partition's owner continues the job
end
redis.call('HDEL', P .. 'c:' .. company, 'job') -- fails first if the key is damaged: the note stays
redis.call('HDEL', P .. 'n:' .. token, note)
if ARGV[5] ~= '' then
  redis.call('ZADD', P .. 'due', now + ARGV[5], note)
end
if redis.call('EXISTS', P .. 'jq:' .. company) == 1 then return join(P, company, now) end
return 0
