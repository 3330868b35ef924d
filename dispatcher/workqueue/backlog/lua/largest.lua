-- Lists the companies of a partition that have the most pending events, of a page
-- of its companies and of some that are named.
-- KEYS: 1 the partition's due set, 2 a key that never exists
-- ARGV: 1 key prefix, 2 where the page begins, 3 its size, 4 how many to list at
--   most; then companies
-- Returns {where the next page begins, then company and pending events in turn, the
--   most first}.
local P, from, size, most = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local page = redis.call('ZREVRANGE', P .. 'companies', from, from + size - 1)
local counts, companies = {}, {}
local function count(company)
  if counts[company] then return end
  counts[company] = tonumber(redis.call('HGET', P .. 'c:' .. company, 'pending') or 0)
  if counts[company] > 0 then companies[#companies + 1] = company end
end
for _, company in ipairs(page) do count(company) end
for i = 5, #ARGV do count(ARGV[i]) end
table.sort(companies, function(a, b)
  if counts[a] ~= counts[b] then return counts[a] > counts[b] end
  return a < b
end)
local out = {#page < size and 0 or from + size}
for i = 1, math.min(most, #companies) do
  out[#out + 1], out[#out + 2] = companies[i], counts[companies[i]]
end
return out
