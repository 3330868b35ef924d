-- Stores a job, by compare-and-set. A new job is scheduled. A finished job leaves the queues. The
-- jobs of a company do not expire while one is unfinished. Finished jobs that are too old or too
-- many are removed.
-- KEYS: 1 the partition's due set, 2 a key that never exists
-- ARGV: 1 key prefix, 2 company, 3 job id, 4 the job as it was read, '' for a new one, 5 the new
--   text of the job, 6 now ms or '', 7 '1' when the job is finished, 8 ms that a finished job is kept,
--   9 number of jobs of a company that are kept, 10 number of unfinished jobs of the company at
--   which a new job is refused
-- Returns 1 when the owner is to be woken; 0 when the job is stored already, so that a client may send the call
-- again; -1 when the job was refused; -2 when the stored job has changed or is missing.
local P, company, job, before, text, now, keep = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], time_of(ARGV[6]), ARGV[8]
check({P})
local jobs, ends, finished = P .. 'jobs:' .. company, P .. 'je:' .. company, ARGV[7] == '1'
local stored = redis.call('HGET', jobs, job) or ''
if stored == text then return 0 end
if stored ~= before then return -2 end
if before == '' and redis.call('ZCOUNT', ends, '+inf', '+inf') >= tonumber(ARGV[10]) then return -1 end

redis.call('HSET', jobs, job, text)
redis.call('ZADD', ends, finished and now or '+inf', job)
local old = redis.call('ZRANGEBYSCORE', ends, '-inf', now - keep, 'LIMIT', 0, 16)
if #old == 0 and redis.call('ZCARD', ends) > tonumber(ARGV[9]) then old = redis.call('ZRANGE', ends, 0, 0) end
if #old > 0 then
  redis.call('HDEL', jobs, unpack(old))
  redis.call('ZREM', ends, unpack(old))
end
local unfinished = redis.call('ZCOUNT', ends, '+inf', '+inf') > 0
for _, key in ipairs({jobs, ends}) do
  if unfinished then redis.call('PERSIST', key) else redis.call('PEXPIRE', key, keep) end
end

local entry = 'j:' .. company .. '/' .. job
if finished then redis.call('ZREM', P .. 'due', entry) end
if finished or before ~= '' then return 0 end
redis.call('ZADD', P .. 'due', work_time(P), entry)
return tell(P, entry)
