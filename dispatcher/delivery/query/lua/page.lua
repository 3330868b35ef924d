-- Reads a sorted set from its highest score down, from where a page ended.
-- KEYS[1] sorted set
-- ARGV[1] score and ARGV[2] member that ended the last page ('' for the first),
--   ARGV[3] '1' to begin with that member, ARGV[4] highest score, ARGV[5] how many
-- Returns {member, score, ...}.
local start
local rank = ARGV[2] ~= '' and redis.call('ZREVRANK', KEYS[1], ARGV[2])
if rank then
  start = rank + (ARGV[3] == '1' and 0 or 1)
elseif ARGV[2] ~= '' then -- it is gone: its score's others may come again, none is skipped
  start = redis.call('ZCOUNT', KEYS[1], '(' .. ARGV[1], '+inf')
else
  start = redis.call('ZCOUNT', KEYS[1], '(' .. ARGV[4], '+inf')
end
return redis.call('ZREVRANGE', KEYS[1], start, start + ARGV[5] - 1, 'WITHSCORES')
