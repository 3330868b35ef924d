-- Lists the companies of a partition with the most pending events, among the 500 companies with the
-- latest events.
-- KEYS: 1 the partition's due set, 2 a key that never exists
-- ARGV: 1 key prefix, 2 maximum of companies to list
-- Returns company and pending events in turn, the most first.
local P, most = ARGV[1], tonumber(ARGV[2])
if (tonumber(redis.call('GET', P .. 'pending')) or 0) == 0 then return {} end
local counts, companies = {}, {}
for _, company in ipairs(redis.call('ZREVRANGE', P .. 'companies', 0, 499)) do
  counts[company] = tonumber(redis.pcall('HGET', P .. 'c:' .. company, 'pending')) or 0 -- 0 too when the key is damaged
  if counts[company] > 0 then companies[#companies + 1] = company end
end
table.sort(companies, function(a, b)
  if counts[a] ~= counts[b] then return counts[a] > counts[b] end
  return a < b
end)
local out = {}
for i = 1, math.min(most, #companies) do
  out[#out + 1], out[#out + 2] = companies[i], counts[companies[i]]
end
return out
