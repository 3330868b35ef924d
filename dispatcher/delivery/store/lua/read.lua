-- Reads deliveries of events: all of an event, or one.
-- KEYS: 1 the partition's due set, 2 a key that never exists
-- ARGV: 1 maximum of deliveries, unless the first event has more, 2 number of events; then for each event: key prefix,
--   company, id, and subscriber, '' for all
-- Returns for each event, until the maximum is reached: the fields of the hash of its deliveries, name and value
-- in turn, with a subscriber only that one. The list is empty for an event whose deliveries cannot be read.
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

for i = 1, #prefixes do
  local P, company, id, sub = unpack(ARGV, 4 * i - 1, 4 * i + 2)
  local fields = sub == '' and deliveries_of(P, company, id) or one(P, company, id, sub)
  if fields.err then fields = {} end
  left = left - #fields / 2
  if left < 0 and i > 1 then break end
  out[i] = fields
end
return out
