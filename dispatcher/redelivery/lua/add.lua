-- Stores a job and schedules it for its due time. If the client sends the call again after a
-- lost reply, the job starts again. An unfinished job, and the list that it is in, do not expire.
-- KEYS: 1 the partition's due set, 2 a key that never exists
-- ARGV: 1 key prefix, 2 company, 3 job id, 4 the job, 5 ms until it is due, '' for a finished
--   job, 6 ms that a finished job is kept, 7 now ms, 8 number of unfinished jobs of the company
--   at which the job is refused, '' for no limit, 9 number of jobs of a company that are kept
-- Returns the result of wake, or -1 when the company has too many unfinished jobs.
local P, company, job, keep = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[6])
check({P})
local all, active, texts = P .. 'jobs:' .. company, P .. 'ja:' .. company, P .. 'job:' .. company .. '/'
local unfinished, finished, added = redis.call('SCARD', active), ARGV[5] == '', 0
if ARGV[8] ~= '' and unfinished >= tonumber(ARGV[8]) and redis.call('SISMEMBER', active, job) == 0 then return -1 end

redis.call('SET', texts .. job, ARGV[4])
redis.call('ZADD', all, ARGV[7], job)
if finished then
  redis.call('PEXPIRE', texts .. job, keep)
else
  added = redis.call('SADD', active, job)
end
if finished and unfinished == 0 then redis.call('PEXPIRE', all, keep) else redis.call('PERSIST', all) end

-- The oldest jobs leave the list, except unfinished ones: those above the number of jobs that
-- are kept, and those whose text has expired.
local excess = redis.call('ZCARD', all) - ARGV[9]
local oldest = redis.call('ZRANGE', all, 0, unfinished + 15, 'WITHSCORES')
for i = 1, #oldest, 2 do
  local id = oldest[i]
  if excess <= 0 and oldest[i + 1] + keep > tonumber(ARGV[7]) then break end
  if redis.call('SISMEMBER', active, id) == 0 and (excess > 0 or redis.call('EXISTS', texts .. id) == 0) then
    redis.call('UNLINK', texts .. id)
    redis.call('ZREM', all, id)
    excess = excess - 1
  end
end

if added == 0 then return 0 end
local now = clock()
if tonumber(ARGV[5]) > 0 then
  redis.call('ZADD', P .. 'due', now + ARGV[5], 'j:' .. company .. '/' .. job)
  return 0
end
redis.call('RPUSH', P .. 'jq:' .. company, job)
return join(P, company, now)
