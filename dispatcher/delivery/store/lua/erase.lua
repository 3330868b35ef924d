-- Erases the payload of a settled event. The event becomes a compacted one: the script
-- keeps its header, a digest and a stub. It deletes all deliveries of the event with the
-- answers of receivers, also dead deliveries and the mark of a disabled subscriber.
-- KEYS: 1 the partition's due set, 2 a key that never exists
-- ARGV: 1 key prefix, 2 company, 3 event id, 4 '1' to delete an unreadable event completely
-- Returns ERASED; GONE when the event was compacted before; UNKNOWN when there is no event;
-- or OPEN when the event is not settled or is unreadable.
local P, company, id = ARGV[1], ARGV[2], ARGV[3]
check({P})
local event, deliveries = P .. 'e:' .. company .. ':' .. id, P .. 'd:' .. company .. '/' .. id
local value, fields = redis.pcall('GET', event), redis.pcall('HGETALL', deliveries)
if not value then return 'UNKNOWN' end
local readable = type(value) == 'string' and #value >= HEADER and not fields.err
if not readable and ARGV[4] == '1' then
  redis.call('UNLINK', event, deliveries)
  redis.call('ZREM', P .. 'ei:' .. company, id)
  return 'ERASED'
end
if not readable then return 'OPEN' end
local state = string.sub(value, 1, 1)
if state == COMPACTED then return 'GONE' end
if state ~= SETTLED then return 'OPEN' end

local subs = {}
for i = 1, #fields, 2 do
  local field, record = fields[i], fields[i + 1]
  if field == '#' then
    if tonumber(record) ~= 0 then return 'OPEN' end
  elseif field ~= '!' and field ~= HELD then
    if not finished(record) then return 'OPEN' end
    subs[#subs + 1] = field
  end
end

local body = string.sub(value, HEADER + 1)
redis.call('SET', event, COMPACTED .. string.sub(value, 2, HEADER) .. digest(content(body)), 'KEEPTTL')
redis.call('UNLINK', deliveries)
redis.call('ZREM', P .. 'ei:' .. company, id)
keep_stubs(P, company, {stub_of(id, value)})
for _, sub in ipairs(subs) do
  local both = id .. '/' .. sub
  redis.call('ZREM', P .. 'da:' .. company .. '/' .. sub, id)
  redis.call('ZREM', P .. 'dd:' .. company .. '/' .. sub, id)
  redis.call('ZREM', P .. 'cd:' .. company, both)
  redis.call('ZREM', P .. 'dead', company .. '/' .. both)
end
give_back(P, company, hour_of(string.sub(value, 2, 14)), #body + OVERHEAD - COMPACTED_BYTES)
return 'ERASED'
