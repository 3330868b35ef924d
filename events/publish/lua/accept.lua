-- Accepts events, each id once. In the same step it claims them, or appends them to the ready
-- queues of their companies.
-- KEYS: 1 a partition's due set, 2 a key that never exists
-- ARGV: 1 now ms or '', 2 retention ms, 3 maximum of pending events per company, 4 bytes of
--       new events that may be admitted, 5 free bytes below the high-water mark, 6 number of
--       the claim, 7 deliveries that may be claimed at once, 8 number of companies; then for each company: key prefix of its partition, id,
--       deliveries that it may claim, token of the partition's owner, '' if the events may not be
--       claimed; then for each event: number of its company, id, body without id and company but with
--       its trace, nonce of this commit (8 hex digits)
-- Returns the numbers of companies in partitions that need a wake-up; the batches of claimed
-- events; their approximate number of deliveries; then for each event ACCEPTED, DUPLICATE (same
-- body), CONFLICT (another body), BACKLOG_FULL, STORAGE_FULL, or FAILED with the error: a key of
-- the company is damaged, and its events are neither accepted nor claimed.
-- Nothing is written for a known id. The nonce identifies a commit. A commit that is sent again
-- after a lost reply gets the same reply. The same event in another commit gets DUPLICATE. A
-- company that keeps more bytes than are free gets STORAGE_FULL.
local now, retention = time_of(ARGV[1]), tonumber(ARGV[2])
local limit, companies = tonumber(ARGV[3]), tonumber(ARGV[8])
local admit, free = tonumber(ARGV[4]), tonumber(ARGV[5])
local event0 = 8 + 4 * companies
local claim = {call = tonumber(ARGV[6]), left = tonumber(ARGV[7])}

-- of_company returns key prefix, id, deliveries that may be claimed, and token, of company c.
local function of_company(c) return unpack(ARGV, 5 + 4 * c, 8 + 4 * c) end

-- claimed_again returns the batch of the events that this call claimed when Redis ran it before;
-- nil when there are none.
local function claimed_again(P, company, token, list)
  local refs, events = {}, {}
  for i, e in ipairs(list) do refs[i] = company .. '/' .. e.id end
  for i, call in ipairs(redis.call('HMGET', P .. 'n:' .. token, unpack(refs))) do
    if call == ARGV[6] then
      events[#events + 1], events[#events + 2], events[#events + 3] = list[i].id, list[i].value, false
    end
  end
  return #events > 0 and batch(P, company, events, {}, {}) or nil
end

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

-- take returns how many events from the start of a company's list fit into memory, and
-- their bytes. In the company's share, the deliveries that an event has on average count as well.
local function take(P, company, list, kept, cost)
  local bytes, more = 0, math.max(cost_of(P, company, cost) - 1, 0) * (DELIVERY_BYTES + OPEN_BYTES)
  if kept > free then kept = recount(P, company, now, retention, retention + GRACE) end
  for i, e in ipairs(list) do
    local size = #e.body + OVERHEAD
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
    out[i], again[c] = 'ACCEPTED', again[c] or {}
    table.insert(again[c], {id = id, value = known})
  end
end

local wakes, batches = {}, {}

-- accept accepts the new events of a company.
local function accept(c, list)
  local P, company, most_claimed, token = of_company(c)
  local counts = redis.call('HMGET', P .. 'c:' .. company, 'pending', 'seq', 'bytes', 'at', 'cost')
  local pending, seq = tonumber(counts[1] or 0), tonumber(counts[2] or 0)
  local kept, last = tonumber(counts[3] or 0), tonumber(counts[4] or 0)
  local most = math.min(#list, math.max(limit - pending, 0))
  for i = #list, most + 1, -1 do out[list[i].at], list[i] = 'BACKLOG_FULL', nil end
  local fits, bytes = take(P, company, list, kept, counts[5])
  for i = most, fits + 1, -1 do out[list[i].at], list[i] = 'STORAGE_FULL', nil end
  if fits == 0 then return end
  claim.free, claim.token = math.min(tonumber(most_claimed), claim.left), token
  local woken, claimed = append(P, company, list, pending, seq, last, now, retention, claim)
  if woken == 1 then wakes[#wakes + 1] = c end
  batches[#batches + 1] = claimed
  admit, free = admit - bytes, free - bytes
end

-- fail answers the new events of a company that accept has not stored, and ends their claims.
local function fail(c, list, why)
  local P, company, _, token = of_company(c)
  local ids, refs = {}, {}
  for i, e in ipairs(list) do
    out[e.at] = 'FAILED ' .. (type(why) == 'table' and why.err or tostring(why))
    ids[i], refs[i] = e.id, company .. '/' .. e.id
  end
  if token ~= '' and #ids > 0 then
    redis.pcall('HDEL', P .. 'n:' .. token, unpack(refs))
    redis.pcall('ZREM', P .. 'om:' .. company, unpack(ids))
  end
end

for c, list in pairs(new) do
  local left = claim.left
  local ok, why = pcall(accept, c, list)
  if not ok then
    claim.left = left
    fail(c, list, why)
  end
end
for c, list in pairs(again) do
  local P, company, _, token = of_company(c)
  if token ~= '' then batches[#batches + 1] = claimed_again(P, company, token, list) end
end
for i, said in ipairs(out) do
  if type(said) == 'table' then -- the event occurs earlier in this call
    out[i] = out[said.at] == 'ACCEPTED' and 'DUPLICATE' or out[said.at]
  end
end
return {wakes, batches, math.ceil(ARGV[7] - claim.left), unpack(out)}
