-- Accepts events, each id once. The owner of a partition gets what it needs to start with them at once.
-- KEYS: 1 a partition's due set, 2 a key that never exists
-- ARGV: 1 now ms or '', 2 retention ms, 3 maximum of pending events per company, 4 bytes of
--       new events that may be admitted, 5 free bytes below the high-water mark, 6 number of companies; then for each
--       company: key prefix of its partition, id, token of the caller as the owner of the partition, '' if it is not;
--       then for each event: number of its company, id, body without id and company but with
--       its trace, nonce of this commit (8 hex digits)
-- Returns the numbers of companies whose owner is to be woken; for each company with new events whose partition the
-- caller owns {number of the company, place in the log of the last event before, place of the first new event, number of
-- the event before it, average number of deliveries of an event, place up to which all events are matched, version of its subscribers, members of bl:<company>}; then for each event ACCEPTED, DUPLICATE (same
-- body), CONFLICT (another body), BACKLOG_FULL, STORAGE_FULL, or FAILED with the error: a key of
-- the company is damaged, and its events are not accepted.
-- Nothing is written for a known id. The nonce identifies a commit. A commit that is sent again
-- after a lost reply gets the same answers. The same event in another commit gets DUPLICATE. A
-- company that keeps more bytes than are free gets STORAGE_FULL.
local now, retention = time_of(ARGV[1]), tonumber(ARGV[2])
local limit, companies = tonumber(ARGV[3]), tonumber(ARGV[6])
local admit, free = tonumber(ARGV[4]), tonumber(ARGV[5])
local event0 = 6 + 3 * companies

-- of_company returns key prefix, id and token of company c.
local function of_company(c) return unpack(ARGV, 4 + 3 * c, 6 + 3 * c) end

local prefixes = {}
for c = 1, companies do prefixes[c] = of_company(c) end
check(prefixes)

-- same reports whether a stored event has this content. A compacted event is compared by
-- its digest.
local function same(known, body)
  local kept = string.sub(split(known), HEADER + 1)
  if string.sub(known, 1, 1) == COMPACTED then return kept == digest(content(body)) end
  return content(kept) == content(body)
end

-- cost_of returns the average number of deliveries of an event: that of the field, or else one for each subscriber.
local function cost_of(P, company, field)
  return tonumber(field or math.max(1, redis.call('HLEN', P .. 's:' .. company) - 1))
end

-- take returns how many events from the start of a company's list fit into memory, and
-- their bytes. In the company's share, the deliveries that an event has on average count as well.
local function take(P, company, list, kept, cost)
  local bytes, more, counted = 0, math.max(cost - 1, 0) * (DELIVERY_BYTES + OPEN_BYTES), false
  for i, e in ipairs(list) do
    local size = #e.body + OVERHEAD
    if kept + 2 * (bytes + i * more) > free and not counted then
      kept, counted = recount(P, company, now, retention, retention + GRACE), true
    end
    if bytes + size > admit or kept + 2 * (bytes + i * more) > free then return i - 1, bytes end
    bytes = bytes + size
  end
  return #list, bytes
end

local keys = {}
for a = event0 + 1, #ARGV, 4 do
  local P, company = of_company(tonumber(ARGV[a]))
  keys[#keys + 1] = P .. 'e:' .. company .. ':' .. ARGV[a + 1]
end
local stored = redis.call('MGET', unpack(keys))

local out, new, again, first = {}, {}, {}, {}
for i, key in ipairs(keys) do
  local a = event0 + 4 * i - 3
  local c, id, body, nonce = tonumber(ARGV[a]), ARGV[a + 1], ARGV[a + 2], ARGV[a + 3]
  local earlier, known = first[key], stored[i]
  if earlier then
    out[i] = content(earlier.body) == content(body) and earlier or 'CONFLICT'
  elseif not known then
    local e = {id = id, body = body, nonce = nonce, at = i}
    first[key], new[c] = e, new[c] or {}
    table.insert(new[c], e)
    out[i] = 'ACCEPTED'
  elseif not same(known, body) then
    out[i] = 'CONFLICT'
  elseif string.sub(known, 15, 22) ~= nonce then
    out[i] = 'DUPLICATE'
  else
    out[i], again[c] = 'ACCEPTED', true -- the first answer was lost
  end
end

local wakes, begun = {}, {}

-- accept accepts the new events of a company.
local function accept(c, list)
  local P, company, token = of_company(c)
  local counts = redis.call('HMGET', P .. 'c:' .. company, 'pending', 'seq', 'bytes', 'at', 'cost', 'cursor', 'answers')
  local pending, seq = tonumber(counts[1] or 0), tonumber(counts[2] or 0)
  local kept, last = tonumber(counts[3] or 0) + tonumber(counts[7] or 0), tonumber(counts[4] or 0)
  local most = math.min(#list, math.max(limit - pending, 0))
  for i = #list, most + 1, -1 do out[list[i].at], list[i] = 'BACKLOG_FULL', nil end
  local cost = cost_of(P, company, counts[5])
  local fits, bytes = take(P, company, list, kept, cost)
  for i = most, fits + 1, -1 do out[list[i].at], list[i] = 'STORAGE_FULL', nil end
  if fits == 0 then return end
  local mine = token ~= '' and redis.call('GET', P .. 'owner') == token and not again[c]
  local version, managed
  if mine then -- read before the events are written: a damaged key fails first
    version, managed = redis.call('HGET', P .. 's:' .. company, 'v'), redis.call('SMEMBERS', P .. 'bl:' .. company)
  end
  local first, told = append(P, company, list, pending, seq, last, now, retention, mine)
  if mine then
    begun[#begun + 1] = {c, counts[4] or '0', string.format('%.17g', first), tostring(seq), tostring(cost), counts[6] or '0', version or '0', managed}
  elseif told == 1 then
    wakes[#wakes + 1] = c
  end
  admit, free = admit - bytes, free - bytes
end

for c, list in pairs(new) do
  local ok, why = pcall(accept, c, list)
  if not ok then -- answers the events that were not stored
    why = 'FAILED ' .. (type(why) == 'table' and why.err or tostring(why))
    for _, e in ipairs(list) do out[e.at] = why end
  end
end
for c in pairs(again) do
  local P, company = of_company(c)
  if tell(P, 'c:' .. company) == 1 then wakes[#wakes + 1] = c end
end
for i, said in ipairs(out) do
  if type(said) == 'table' then -- the event occurs earlier in this call
    out[i] = out[said.at] == 'ACCEPTED' and 'DUPLICATE' or out[said.at]
  end
end
return {wakes, begun, unpack(out)}
