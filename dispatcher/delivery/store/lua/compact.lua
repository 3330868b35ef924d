-- Compacts events of one partition that were settled long enough ago. An event is left unchanged
-- when it is not settled any more, when a delivery of it is dead, when a disabled subscriber was to
-- have a delivery, or when it was settled again later: in the last case the event has a later entry.
-- KEYS: 1 the partition's due set, 2 a key that never exists
-- ARGV: 1 key prefix, 2 now ms or '', 3 ms between settling and compaction, 4 maximum of events
--   and deliveries to read, 5 maximum of bytes of events to read, 6 ms that an event is kept after
--   it was accepted, 7 as ARGV 5 of record.lua
-- Returns {events compacted, 1 when more are due else 0}.
local P, now, after = ARGV[1], time_of(ARGV[2]), tonumber(ARGV[3])
local left, bytes, count = tonumber(ARGV[4]), tonumber(ARGV[5]), 0
check({P})

-- With a history, what settled since the first event that waits for it is not compacted: it may wait, too. The 5 s allow
-- for clocks that differ. Without one, because it was switched off, nothing waits.
local written = math.huge
if ARGV[7] == '0' then
  for _ = 1, left do
    local entry = redis.pcall('LPOP', P .. 'history')
    if type(entry) ~= 'string' then break end
    may_compact(P, entry)
  end
  end_settling(now)
else
  local first = redis.pcall('LINDEX', P .. 'history', 0)
  if type(first) == 'string' then written = (tonumber(string.sub(first, 1, 8), 16) - 5) * 1000 end
end

-- delivered lists the subscribers that have a delivery of the event, and the records of these deliveries;
-- nil when the event must not be compacted, and true when it may wait for the history.
local function delivered(company, id, value)
  local fields, subs, records = deliveries_of(P, company, id, value), {}, {}
  if fields.err then return nil end
  for i = 1, #fields, 2 do
    local field, value = fields[i], fields[i + 1]
    if field == '!' or field == HELD or field == '#' and value ~= '0' then return nil end
    if field ~= '#' then
      local status, updated = string.sub(value, 1, 1), tonumber(string.match(value, '"u":(%d+)'))
      if status ~= 'D' and status ~= 'C' or not updated or updated + after > now then return nil end
      if updated >= written then return nil, true end
      subs[#subs + 1], records[#records + 1] = field, value
    end
  end
  return subs, records
end

local progress = false -- else all that is due waits for the history

-- compact_company removes the first entries of a company's list of settled events and
-- compacts their events.
local function compact_company(company)
  local taken = 0
  for _, entry in ipairs(redis.call('LRANGE', P .. 'done:' .. company, 0, left - 1)) do
    if left <= 0 or bytes <= 0 or tonumber(string.sub(entry, 1, 8), 16) * 1000 + after > now then break end
    local id = string.sub(entry, 9)
    local value = redis.pcall('GET', P .. 'e:' .. company .. ':' .. id)
    local settled = type(value) == 'string' and string.sub(value, 1, 1) == SETTLED
    local subs, records
    if settled then subs, records = delivered(company, id, value) end
    if records == true then break end
    taken, left = taken + 1, left - 1
    if settled then
      bytes = bytes - #value
      if subs then
        compact_event(P, company, id, value, now, ARGV[6], records)
        redis.call('UNLINK', P .. 'd:' .. company .. '/' .. id)
        for _, sub in ipairs(subs) do gather(P .. 'da:' .. company .. '/' .. sub, id, false) end
        left, count = left - #subs, count + 1
      end
    end
  end
  if taken > 0 then redis.call('LPOP', P .. 'done:' .. company, taken) end
  progress = progress or taken > 0
end

for _, company in ipairs(redis.call('ZRANGEBYSCORE', P .. 'compact', '-inf', now - after, 'LIMIT', 0, left)) do
  if left <= 0 or bytes <= 0 then break end
  compact_company(company)
  local first = redis.call('LINDEX', P .. 'done:' .. company, 0)
  if first then
    redis.call('ZADD', P .. 'compact', tonumber(string.sub(first, 1, 8), 16) * 1000, company)
  else
    redis.call('ZREM', P .. 'compact', company)
  end
end
end_compacting(now)
local first = redis.call('ZRANGE', P .. 'compact', 0, 0, 'WITHSCORES')
return {count, progress and first[1] and first[2] + after <= now and 1 or 0}
