#!lua flags=no-writes
-- Lists the companies with the most pending events, among the 500 companies of a partition
-- with the latest events.
-- KEYS[1] the companies of the partition
-- ARGV[1] prefix of the keys of company counters, ARGV[2] maximum of companies to list
-- Returns company and count in turn; companies without pending events are left out.
local found = {}
for _, company in ipairs(redis.call('ZREVRANGE', KEYS[1], 0, 499)) do
  local pending = tonumber(redis.call('HGET', ARGV[1] .. company, 'pending') or 0)
  if pending > 0 then
    found[#found + 1] = {company, pending}
  end
end
table.sort(found, function(a, b) return a[2] > b[2] end)
local list = {}
for i = 1, math.min(#found, tonumber(ARGV[2])) do
  list[#list + 1] = found[i][1]
  list[#list + 1] = found[i][2]
end
return list
