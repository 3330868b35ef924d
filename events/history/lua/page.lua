-- Reads one page of a company's index, by (score, member). If the cursor's member is
-- missing, the page continues at the cursor's score. No other member has that score, so no
-- event is skipped or repeated. A score is a millisecond and a fraction; lowest and highest
-- ms are whole numbers.
-- KEYS: 1 index
-- ARGV: 1 'desc' or 'asc', 2 lowest ms, 3 highest ms, 4 size of the page,
--       5 cursor ms, 6 cursor member ('' for the first page)
-- Returns member, score, member, score, ... strictly after the cursor.
local desc = ARGV[1] == 'desc'
local first, past
if desc then
  first = redis.call('ZCOUNT', KEYS[1], tonumber(ARGV[3]) + 1, '+inf')
else
  first = redis.call('ZCOUNT', KEYS[1], '-inf', '(' .. ARGV[2])
end
if ARGV[6] == '' then
  past = 0
elseif tonumber(redis.call('ZSCORE', KEYS[1], ARGV[6]) or -1) == tonumber(ARGV[5]) then
  past = 1 + redis.call(desc and 'ZREVRANK' or 'ZRANK', KEYS[1], ARGV[6])
elseif desc then
  past = redis.call('ZCOUNT', KEYS[1], ARGV[5], '+inf')
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
