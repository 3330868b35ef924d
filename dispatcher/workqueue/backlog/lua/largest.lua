-- Lists the companies with the most pending events, among one page of a partition's
-- companies and the companies in ARGV.
-- KEYS: 1 the partition's due set, 2 a key that never exists
-- ARGV: 1 key prefix, 2 beginning of the page, 3 its size, 4 maximum of companies to list;
--   then companies
-- Returns {beginning of the next page, then company and pending events in turn, the most
--   first}.
local P, from, size, most = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local page = redis.call('ZREVRANGE', P .. 'companies', from, from + size - 1)
local counts, companies = {}, {}
local function count(company)
  if counts[company] then return end
  counts[company] = tonumber(redis.pcall('HGET', P .. 'c:' .. company, 'pending')) or 0 -- 0 too when the key is damaged
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
