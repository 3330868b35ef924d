-- Stores a job and schedules it for its due time. If the job is stored already and not
-- finished, the new text replaces it, and the job starts again.
-- KEYS: 1 the partition's due set, 2 a key that never exists
-- ARGV: 1 key prefix, 2 company, 3 job id, 4 the job, 5 ms until it is due, '' when
--   there is nothing to do, 6 ms that it is kept, 7 now ms, 8 number of unfinished jobs of
--   the company at which the job is refused, '' for no limit, 9 number of jobs of a company
--   that are kept
-- Returns the result of wake, or -1 when the company has too many unfinished jobs.
local P, company, job = ARGV[1], ARGV[2], ARGV[3]
check({P})
local all, active = P .. 'jobs:' .. company, P .. 'ja:' .. company
if ARGV[8] ~= '' and redis.call('SCARD', active) >= tonumber(ARGV[8]) then return -1 end

redis.call('SET', P .. 'job:' .. company .. '/' .. job, ARGV[4], 'PX', ARGV[6])
redis.call('ZADD', all, ARGV[7], job)
redis.call('PEXPIRE', all, ARGV[6])
redis.call('ZREMRANGEBYSCORE', all, '-inf', ARGV[7] - ARGV[6])
local excess = redis.call('ZCARD', all) - ARGV[9]
if excess > 0 then
  for _, old in ipairs(redis.call('ZRANGE', all, 0, math.min(excess, 16) - 1)) do
    if redis.call('SISMEMBER', active, old) == 0 then
      redis.call('UNLINK', P .. 'job:' .. company .. '/' .. old)
      redis.call('ZREM', all, old)
    end
  end
end

if ARGV[5] == '' or redis.call('SADD', active, job) == 0 then return 0 end
local now = clock()
if tonumber(ARGV[5]) > 0 then
  redis.call('ZADD', P .. 'due', now + ARGV[5], 'j:' .. company .. '/' .. job)
  return 0
end
redis.call('RPUSH', P .. 'jq:' .. company, job)
return join(P, company, now)
