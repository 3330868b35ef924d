#!lua flags=allow-oom
-- Adds a link or a session, unless its owner has the maximum. The script also runs while
-- Redis is full, because an operator needs the console then.
-- KEYS[1] the record, KEYS[2] the names of the owner's records by their end, KEYS[3] the
-- names of the records of all owners (for links: KEYS[2] again)
-- ARGV[1] the record's text, ARGV[2] now, ARGV[3] the latest end of the record, ARGV[4] the
-- time after which it expires when unused, ARGV[5] its name in KEYS[2], ARGV[6] its name in
-- KEYS[3], ARGV[7] the maximum of records per owner, ARGV[8] the prefix of the keys of
-- records, ARGV[9] the longest life of a record; times in ms
-- Returns 1, or 0 when the owner has the maximum. A second call changes nothing.
if redis.call('EXISTS', KEYS[1]) == 1 then return 1 end
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', ARGV[2])
redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', ARGV[2])
if redis.call('ZCARD', KEYS[2]) >= tonumber(ARGV[7]) then
  for _, name in ipairs(redis.call('ZRANGE', KEYS[2], 0, -1)) do
    -- Remove the names of records that were used or that expired before their end.
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
