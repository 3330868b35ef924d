#!lua flags=allow-oom
-- Adds a link or a session, unless its owner has as many as it may. Also while Redis
-- is full: then somebody has to look.
-- KEYS[1] the record, KEYS[2] names of the owner's by their end, KEYS[3] those of all owners (of
-- links, KEYS[2] again)
-- ARGV[1] the record's text, ARGV[2] now, ARGV[3] when it ends at the latest, ARGV[4] how long it
-- lives unused, ARGV[5] its name among the owner's, ARGV[6] among all, ARGV[7] how many there may
-- be, ARGV[8] what the keys of records begin with, ARGV[9] the longest life; times in ms
-- Returns 1, or 0 when there are too many.
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', ARGV[2])
redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', ARGV[2])
if redis.call('ZCARD', KEYS[2]) >= tonumber(ARGV[7]) then
  for _, name in ipairs(redis.call('ZRANGE', KEYS[2], 0, -1)) do -- some ended unused
    if redis.call('EXISTS', ARGV[8] .. name) == 0 then
      redis.call('ZREM', KEYS[2], name)
    end
  end
  if redis.call('ZCARD', KEYS[2]) >= tonumber(ARGV[7]) then
    return 0
  end
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[4])
redis.call('ZADD', KEYS[2], ARGV[3], ARGV[5])
redis.call('PEXPIRE', KEYS[2], ARGV[9])
if KEYS[3] ~= KEYS[2] then
  redis.call('ZADD', KEYS[3], ARGV[3], ARGV[6])
  redis.call('PEXPIRE', KEYS[3], ARGV[9])
end
return 1
