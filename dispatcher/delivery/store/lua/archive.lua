-- Reads the first events of a partition that wait for the history, oldest first.
-- KEYS: 1 the partition's due set, 2 a key that never exists
-- ARGV: 1 key prefix, 2 maximum of events, 3 maximum of bytes of events and records, unless the first event has more
-- Returns the number of events that wait; then for each event a list: its entry; its value without records, of an erased
-- one the header alone, '' when it is open again or not kept; its place in the index of its company, '' when it has
-- none; then in turn subscriber, record, and time of death, '' when it is not dead.
local P, left = ARGV[1], tonumber(ARGV[3])
check({P})
local out = {redis.call('LLEN', P .. 'history')}
for _, entry in ipairs(redis.call('LRANGE', P .. 'history', 0, ARGV[2] - 1)) do
  local company, id = string.sub(entry, 10, 45), string.sub(entry, 47)
  local event, found = P .. 'e:' .. company .. ':' .. id, {entry, '', ''}
  local value = redis.pcall('GET', event)
  if string.sub(entry, 9, 9) == ERASED then
    if type(value) == 'string' and string.sub(value, 1, 1) == COMPACTED then found[2] = string.sub(value, 1, HEADER) end
  elseif type(value) == 'string' and string.sub(value, 1, 1) == SETTLED then
    local fields = deliveries_of(P, company, id, value)
    left = left - #value
    for i = 2, fields.err and 0 or #fields, 2 do left = left - #fields[i] end
    if left < 0 and #out > 1 then break end
    found[2], found[3] = split(value), redis.call('ZSCORE', P .. 'ei:' .. company, id) or ''
    for i = 1, fields.err and 0 or #fields, 2 do
      local sub, record = fields[i], fields[i + 1]
      if #sub == 36 then
        local died = string.sub(record, 1, 1) == 'X' and redis.call('ZSCORE', P .. 'cd:' .. company, id .. '/' .. sub)
        found[#found + 1], found[#found + 2], found[#found + 3] = sub, record, died or ''
      end
    end
  end
  out[#out + 1] = found
end
return out
