-- Measures the waiting work of a partition. The script reads at most 100 companies with events that are not matched.
-- Among the 500 companies with the latest events it finds those with the most pending events. It leaves out
-- damaged keys of companies.
-- KEYS: 1 the partition's due set, 2 a key that never exists
-- ARGV: 1 key prefix, 2 maximum of companies with the most pending events, 3 how many ms a dead
-- letter is kept
-- Returns {pending events, ms that a job or an event that is to be matched again has waited, entries of the quarantine,
--   {company, ms that its first event that is not matched has waited, ...} of at most 100 companies,
--   {company, pending events, ...} of the companies with the most, dead letters, events that wait for the history, ms
--   that the first of them has waited}.
local P, most = ARGV[1], tonumber(ARGV[2])
local now, work = clock(), work_time(P, true)
local waited = 0
local due = redis.call('ZRANGEBYSCORE', P .. 'due', '-inf', work, 'WITHSCORES', 'LIMIT', 0, 100)
for i = 1, #due, 2 do
  if string.sub(due[i], 1, 1) ~= 'e' then waited = math.max(waited, work - tonumber(due[i + 1])) end
end
local pending = tonumber(redis.call('GET', P .. 'pending') or 0)
local waits, counts, companies, largest = {}, {}, {}, {}
for _, company in ipairs(redis.call('SRANDMEMBER', P .. 'active', 100)) do
  local cursor = redis.pcall('HGET', P .. 'c:' .. company, 'cursor')
  local first = redis.pcall('ZRANGEBYSCORE', P .. 'ei:' .. company, '(' .. (type(cursor) == 'string' and cursor or '0'), '+inf', 'LIMIT', 0, 100)
  for i = 1, #first do
    local head = redis.pcall('GETRANGE', P .. 'e:' .. company .. ':' .. first[i], 0, 13)
    if type(head) == 'string' and string.sub(head, 1, 1) == 'R' then
      waits[#waits + 1], waits[#waits + 2] = company, math.max(0, now - tonumber(string.sub(head, 2)))
      break
    end
  end
end
if pending > 0 and most > 0 then
  for _, company in ipairs(redis.call('ZREVRANGE', P .. 'companies', 0, 499)) do
    counts[company] = tonumber(redis.pcall('HGET', P .. 'c:' .. company, 'pending')) or 0 -- 0 too when the key is damaged
    if counts[company] > 0 then companies[#companies + 1] = company end
  end
  table.sort(companies, function(a, b) return counts[a] > counts[b] or counts[a] == counts[b] and a < b end)
  for i = 1, math.min(most, #companies) do
    largest[2 * i - 1], largest[2 * i] = companies[i], counts[companies[i]]
  end
end
local first = redis.pcall('LINDEX', P .. 'history', 0)
local waiting = redis.pcall('LLEN', P .. 'history')
local behind = type(first) == 'string' and math.max(0, now - tonumber(string.sub(first, 1, 8), 16) * 1000) or 0
return {
  pending, waited, redis.call('ZCARD', P .. 'quarantine'), waits, largest,
  redis.call('ZCOUNT', P .. 'dead', now - tonumber(ARGV[3]), '+inf'),
  type(waiting) == 'number' and waiting or 0, behind,
}
