-- Stores the egress certificate of a company or a subscriber, or removes it, if there is one.
-- KEYS: 1 company's subscribers, 2 certificates of the partition
-- ARGV: 1 certificate JSON, '' to remove it, 2 its member in KEYS[2], 3 end of the certificate (ms), 4 its field in
--       KEYS[1], 5 the subscriber, '' for the company's, 6 maximum of subscribers with a certificate,
--       7 1 when no memory is left for one more
-- Returns 1; 0 when the subscriber does not exist; -1 when too many subscribers have one; -2 when no memory is left. All but 1 change nothing.
if ARGV[5] ~= '' and ARGV[1] ~= '' then
  if redis.call('HEXISTS', KEYS[1], ARGV[5]) == 0 then return 0 end
  if redis.call('HEXISTS', KEYS[1], ARGV[4]) == 0 then
    local own = 0
    for _, field in ipairs(redis.call('HKEYS', KEYS[1])) do
      if string.sub(field, 1, 3) == 'cs:' then own = own + 1 end
    end
    if own >= tonumber(ARGV[6]) then return -1 end
  end
end
if ARGV[1] ~= '' and ARGV[7] == '1' and redis.call('HEXISTS', KEYS[1], ARGV[4]) == 0 then return -2 end
if ARGV[1] ~= '' then
  redis.call('HSET', KEYS[1], ARGV[4], ARGV[1])
  redis.call('ZADD', KEYS[2], ARGV[3], ARGV[2])
elseif redis.call('HDEL', KEYS[1], ARGV[4]) == 0 then
  return 1
else
  redis.call('ZREM', KEYS[2], ARGV[2])
end
touch(KEYS[1])
return 1
