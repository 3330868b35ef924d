-- Saves a job's progress, by compare-and-set. A finished job expires, and so does the list of
-- the company's jobs when it has no unfinished one.
-- KEYS: 1 the partition's due set, 2 a key that never exists
-- ARGV: 1 key prefix, 2 company, 3 job id, 4 the job as it was read, 5 the new text of the
--   job, 6 ms that a finished job is kept, 7 '1' when it is finished
-- Returns 1, or 0 when the stored job has changed or is missing.
local P, company, job = ARGV[1], ARGV[2], ARGV[3]
check({P})
local key, active = P .. 'job:' .. company .. '/' .. job, P .. 'ja:' .. company
if redis.call('GET', key) ~= ARGV[4] then return 0 end
redis.call('SET', key, ARGV[5])
if ARGV[7] == '1' then -- remove it from the queues; endjob.lua ends a claim under way
  redis.call('PEXPIRE', key, ARGV[6])
  redis.call('SREM', active, job)
  redis.call('LREM', P .. 'jq:' .. company, 0, job)
  redis.call('ZREM', P .. 'due', 'j:' .. company .. '/' .. job)
  if redis.call('EXISTS', active) == 0 then redis.call('PEXPIRE', P .. 'jobs:' .. company, ARGV[6]) end
end
return 1
