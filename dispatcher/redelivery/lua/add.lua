-- Stores a job and has it served when it is due.
-- KEYS: 1 the partition's due set, 2 a key that never exists
-- ARGV: 1 key prefix, 2 company, 3 job id, 4 the job, 5 ms until it is due, 6 ms
--   that it is kept
-- Returns what wake does.
local P, company, job = ARGV[1], ARGV[2], ARGV[3]
check({P})
local now = clock()
redis.call('SET', P .. 'job:' .. company .. '/' .. job, ARGV[4], 'PX', ARGV[6])
if tonumber(ARGV[5]) > 0 then
  redis.call('ZADD', P .. 'due', now + ARGV[5], 'j:' .. company .. '/' .. job)
  return 0
end
redis.call('RPUSH', P .. 'jq:' .. company, job)
return join(P, company, now)
