-- Reads one page of an index, by (score, member). If the cursor's member is missing or has
-- another score, the page continues at the cursor's score: members with that score may be
-- repeated, and none is skipped. A score is a millisecond and perhaps a fraction; lowest and
-- highest ms are whole numbers.
-- KEYS: 1 index
-- ARGV: 1 '1' for ascending order, 2 lowest ms, 3 highest ms, 4 size of the page, 5 cursor
--       ms, 6 cursor member ('' for the first page), 7 '1' to begin with the cursor
-- Returns member, score, member, score, ... after the cursor.
local desc = ARGV[1] ~= '1'
local first, past
if desc then
  first = redis.call('ZCOUNT', KEYS[1], tonumber(ARGV[3]) + 1, '+inf')
else
  first = redis.call('ZCOUNT', KEYS[1], '-inf', '(' .. ARGV[2])
end
if ARGV[6] == '' then
  past = 0
elseif tonumber(redis.call('ZSCORE', KEYS[1], ARGV[6]) or -1) == tonumber(ARGV[5]) then
  past = redis.call(desc and 'ZREVRANK' or 'ZRANK', KEYS[1], ARGV[6]) + (ARGV[7] == '1' and 0 or 1)
elseif desc then
  past = redis.call('ZCOUNT', KEYS[1], '(' .. ARGV[5], '+inf')
else
  past = redis.call('ZCOUNT', KEYS[1], '-inf', '(' .. ARGV[5])
end
first = math.max(first, past)

local got = redis.call(desc and 'ZREVRANGE' or 'ZRANGE', KEYS[1], first, first + ARGV[4] - 1, 'WITHSCORES')
local page = {}
for i = 1, #got, 2 do
  local score = tonumber(got[i + 1])
  if score >= tonumber(ARGV[2]) and math.floor(score) <= tonumber(ARGV[3]) then
    page[#page + 1] = got[i]
    page[#page + 1] = got[i + 1]
  end
end
return page
