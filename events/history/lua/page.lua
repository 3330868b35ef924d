-- Reads one page of an index, by (score, member). The cursor's member need not be in the index. A score is a
-- millisecond and perhaps a fraction; lowest and highest ms are whole numbers.
-- KEYS: 1 index
-- ARGV: 1 '1' for ascending order, 2 lowest ms, 3 highest ms, 4 size of the page, 5 cursor
--       ms, 6 cursor member ('' for the first page), 7 '1' to begin with the cursor
-- Returns member, score, member, score, ... after the cursor.
local desc = ARGV[1] ~= '1'
local first, past

-- before compares members by their bytes, as a sorted set does; < would use the locale.
local function before(a, b)
  for i = 1, math.min(#a, #b) do
    local x, y = string.byte(a, i), string.byte(b, i)
    if x ~= y then return x < y end
  end
  return #a < #b
end

-- rank_of returns how many members come before a place, in ascending order.
local function rank_of(score, member)
  local low = redis.call('ZCOUNT', KEYS[1], '-inf', '(' .. score)
  local high = low + redis.call('ZCOUNT', KEYS[1], score, score)
  while low < high do
    local middle = math.floor((low + high) / 2)
    if before(redis.call('ZRANGE', KEYS[1], middle, middle)[1], member) then low = middle + 1 else high = middle end
  end
  return low
end

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
  past = redis.call('ZCARD', KEYS[1]) - rank_of(ARGV[5], ARGV[6])
else
  past = rank_of(ARGV[5], ARGV[6])
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
