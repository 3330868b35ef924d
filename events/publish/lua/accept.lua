-- Accepts events, each id once, and appends them to the ready queues of their companies in
-- the same step.
-- KEYS: 1 a partition's due set, 2 a key that never exists
-- ARGV: 1 now ms, 2 retention ms, 3 ms that now may be ahead of Redis's time, 4 maximum of
--       pending events per company, 5 bytes of new events that may be admitted, 6 free
--       bytes below the high-water mark, 7 number of companies; then for each company: key
--       prefix of its partition, id; then for each event: number of its company, id, body
--       without id and company but with its trace, nonce of this commit (8 hex digits)
-- Returns the numbers of companies in partitions that need a wake-up, then for each event
-- ACCEPTED, DUPLICATE (same body), CONFLICT (another body), BACKLOG_FULL or STORAGE_FULL.
-- Nothing is written for a known id. The nonce identifies a commit: a commit that is sent
-- again after a lost reply gets ACCEPTED again, the same event in another commit gets
-- DUPLICATE. A company that keeps more bytes than are free gets no more.
local now, retention, lead = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local limit, companies = tonumber(ARGV[4]), tonumber(ARGV[7])
local admit, free = tonumber(ARGV[5]), tonumber(ARGV[6])
local prefixes = {}
for c = 1, companies do prefixes[c] = ARGV[6 + 2 * c] end
check(prefixes)

-- same reports whether a stored event has this content. A compacted event is compared by
-- its digest.
local function same(known, body)
  local kept = string.sub(known, HEADER + 1)
  if string.sub(known, 1, 1) == COMPACTED then return kept == digest(content(body)) end
  return content(kept) == content(body)
end

-- take returns how many events from the start of a company's list fit into memory, and
-- their bytes.
local function take(P, company, list, kept)
  local bytes = 0
  if kept > free then kept = recount(P, company, now, retention, retention + GRACE) end
  for i, e in ipairs(list) do
    local size = #e.body + OVERHEAD
    if bytes + size > admit or kept + bytes > free - bytes then return i - 1, bytes end
    bytes = bytes + size
  end
  return #list, bytes
end

local keys = {}
for a = 8 + 2 * companies, #ARGV, 4 do
  local c = tonumber(ARGV[a])
  keys[#keys + 1] = ARGV[6 + 2 * c] .. 'e:' .. ARGV[7 + 2 * c] .. ':' .. ARGV[a + 1]
end
local stored = redis.call('MGET', unpack(keys))

local out, new, first = {}, {}, {}
for i, key in ipairs(keys) do
  local a = 4 + 2 * companies + 4 * i
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
    out[i] = 'ACCEPTED'
  end
end

local wakes = {}
for c, list in pairs(new) do
  local P, company = ARGV[6 + 2 * c], ARGV[7 + 2 * c]
  local counts = redis.call('HMGET', P .. 'c:' .. company, 'pending', 'seq', 'bytes', 'at')
  local pending, seq = tonumber(counts[1] or 0), tonumber(counts[2] or 0)
  local kept, last = tonumber(counts[3] or 0), tonumber(counts[4] or 0)
  local most = math.min(#list, math.max(limit - pending, 0))
  for i = #list, most + 1, -1 do out[list[i].at], list[i] = 'BACKLOG_FULL', nil end
  local fits, bytes = take(P, company, list, kept)
  for i = most, fits + 1, -1 do out[list[i].at], list[i] = 'STORAGE_FULL', nil end
  if fits > 0 then
    admit, free = admit - bytes, free - bytes
    if append(P, company, list, pending, seq, last, now, retention, lead) == 1 then wakes[#wakes + 1] = c end
  end
end
for i, said in ipairs(out) do
  if type(said) == 'table' then -- the event occurs earlier in this call
    out[i] = out[said.at] == 'ACCEPTED' and 'DUPLICATE' or out[said.at]
  end
end
return {wakes, unpack(out)}
