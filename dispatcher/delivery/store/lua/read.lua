-- Reads deliveries of events: all of an event, or one.
-- KEYS: 1 the partition's due set, 2 a key that never exists
-- ARGV: 1 maximum of deliveries, unless the first event has more, 2 number of events; then for each event: key prefix,
--   company, id, and subscriber, '' for all
-- Returns for each event, until the maximum is reached: the fields of the hash of its deliveries, name and value
-- in turn, with a subscriber only that one. Without such fields the list has one text, and is empty when the event is
-- compacted or unknown.
local out, left = {}, tonumber(ARGV[1])
local prefixes = {}
for i = 1, tonumber(ARGV[2]) do prefixes[i] = ARGV[4 * i - 1] end
check(prefixes)

-- one returns a subscriber and its record.
local function one(P, company, id, sub)
  local record = redis.pcall('HGET', P .. 'd:' .. company .. '/' .. id, sub)
  if not record then
    local _, text = packed_of(P, company, id)
    record = text and unpack_records(text, sub)[2]
  end
  return type(record) == 'string' and {sub, record} or {}
end

-- nothing returns the list of an event without fields.
local function nothing(P, company, id, err)
  local state = err and DAMAGED or redis.pcall('GETRANGE', P .. 'e:' .. company .. ':' .. id, 0, 0)
  if state == '' or state == COMPACTED then return {} end
  return {type(state) == 'string' and state or DAMAGED}
end

for i = 1, #prefixes do
  local P, company, id, sub = unpack(ARGV, 4 * i - 1, 4 * i + 2)
  local fields = sub == '' and deliveries_of(P, company, id) or one(P, company, id, sub)
  if fields.err or #fields == 0 then fields = nothing(P, company, id, fields.err) end
  left = left - math.floor(#fields / 2)
  if left < 0 and i > 1 then break end
  out[i] = fields
end
return out
