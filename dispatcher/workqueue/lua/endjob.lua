-- Ends a step of a job.
-- KEYS: 1 the partition's due set, 2 a key that never exists
-- ARGV: 1 key prefix, 2 j:<company>/<job>, 3 ms until its next step, '' when the job has ended
local P, entry = ARGV[1], ARGV[2]
check({P})
if ARGV[3] ~= '' then
  redis.call('ZADD', P .. 'due', work_time(P) + ARGV[3], entry)
elseif redis.call('SISMEMBER', P .. 'told', entry) == 0 then -- else there is more for it to do since then
  redis.call('ZREM', P .. 'due', entry)
end
