-- Measures the waiting work of a partition. The script reads at most 100 companies, the
-- next in turn first, and of each company the endpoint queue that is next in turn. Among the 500
-- companies with the latest events it finds those with the most pending events. It leaves out
-- damaged keys of companies.
-- KEYS: 1 the partition's due set, 2 a key that never exists
-- ARGV: 1 key prefix, 2 maximum of companies with the most pending events, 3 how many ms a dead
-- letter is kept
-- Returns {pending events, ms that the oldest entry of the due set has waited or that a company's work has been
--   put back again and again, entries of the quarantine, {company, ms that its oldest work has waited, ...} of at most 100 companies,
--   {company, pending events, ...} of the companies with the most, dead letters}. The wait of an
--   endpoint queue begins when it may be served: until then its receiver, its rate or a pause delays it.
local P, most = ARGV[1], tonumber(ARGV[2])
local now, work = clock(), work_time(P, true)
local waited = 0
local due = redis.call('ZRANGE', P .. 'due', 0, 0, 'WITHSCORES')
if due[1] and due[1] ~= '' and due[1] ~= SKIPPED then waited = math.max(0, work - tonumber(due[2])) end
for _, text in ipairs(redis.pcall('HVALS', P .. 'back')) do
  local since, last = string.match(text, '^(%d+) (%d+)$')
  if last and last + BACK_MS >= work then waited = math.max(waited, last - since) end
end
local pending = tonumber(redis.call('GET', P .. 'pending') or 0)
local waits, counts, companies, largest = {}, {}, {}, {}
for _, company in ipairs(redis.call('ZRANGE', P .. 'sched', 0, 99)) do
  local oldest = now
  local id = redis.pcall('LINDEX', P .. 'q:' .. company, 0)
  if type(id) == 'string' then
    local accepted = redis.pcall('GETRANGE', P .. 'e:' .. company .. ':' .. string.gsub(id, '^!', ''), 1, 13)
    if type(accepted) == 'string' then oldest = math.min(oldest, tonumber(accepted) or now) end
  end
  local turn = redis.pcall('ZRANGE', P .. 'dq:' .. company, 0, 0, 'WITHSCORES')
  if turn[2] then oldest = math.min(oldest, now - work + turn[2]) end
  if oldest < now then waits[#waits + 1], waits[#waits + 2] = company, now - oldest end
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
return {
  pending, waited, redis.call('ZCARD', P .. 'quarantine'), waits, largest,
  redis.call('ZCOUNT', P .. 'dead', now - tonumber(ARGV[3]), '+inf'),
}
