-- Reads a page of a sorted set, in descending order of scores.
-- KEYS[1] sorted set
-- ARGV[1] score and ARGV[2] member at the end of the last page ('' for the first page),
--   ARGV[3] '1' to begin with that member, ARGV[4] highest score, ARGV[5] size of the page
-- Returns {member, score, ...}.
local start
local rank = ARGV[2] ~= '' and redis.call('ZREVRANK', KEYS[1], ARGV[2])
if rank then
  start = rank + (ARGV[3] == '1' and 0 or 1)
elseif ARGV[2] ~= '' then
  -- The member was removed: others with its score may be repeated, and none is skipped.
  start = redis.call('ZCOUNT', KEYS[1], '(' .. ARGV[1], '+inf')
else
  start = redis.call('ZCOUNT', KEYS[1], '(' .. ARGV[4], '+inf')
end
return redis.call('ZREVRANGE', KEYS[1], start, start + ARGV[5] - 1, 'WITHSCORES')
