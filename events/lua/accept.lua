-- Accepts events, each once, together with their place in the ready queue of
-- their company.
-- KEYS: 1 a partition's due set, 2 a key that never exists
-- ARGV: 1 accepted ms (13 digits), 2 retention ms, 3 index ttl ms, 4 pending
--       events a company may have, 5 bytes of new events that may be admitted,
--       6 bytes that are free below the high-water mark, 7 number of companies;
--       then for each company the key prefix of its partition and its id; then
--       for each event the number of its company, its id, its body without id
--       and company, and the nonce of this commit (8 hex)
-- Returns the numbers of companies whose partition needs a wake-up, then for each
-- event ACCEPTED, DUPLICATE (same body), CONFLICT (another body), BACKLOG_FULL or
-- STORAGE_FULL. Nothing is written for a known id. The nonce tells a commit that
-- was sent again after its reply was lost, which is still ACCEPTED, from the same
-- event sent twice. A company that keeps more than is free gets no more.
local now, retention, ttl, limit, companies = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[7])
local admit, free = tonumber(ARGV[5]), tonumber(ARGV[6])
local prefixes = {}
for c = 1, companies do prefixes[c] = ARGV[6 + 2 * c] end
check(prefixes)

-- same tells whether a stored event has this content. Of a compacted one only
-- the digest is kept.
local function same(known, body)
  local kept = string.sub(known, HEADER + 1)
  if string.sub(known, 1, 1) == COMPACTED then return kept == digest(body) end
  return kept == body
end

-- recount drops the hours whose events are not kept any more, and returns the
-- bytes of the others.
local function recount(state, hours)
  local oldest, total, old = hour_of(now - retention), 0, {}
  local counts = redis.call('HGETALL', hours)
  for i = 1, #counts, 2 do
    if tonumber(counts[i]) < oldest then
      old[#old + 1] = counts[i]
    else
      total = total + counts[i + 1]
    end
  end
  if #old > 0 then redis.call('HDEL', hours, unpack(old)) end
  redis.call('HSET', state, 'bytes', total)
  redis.call('PEXPIRE', hours, ttl + HOUR)
  return total
end

-- take takes a company's events in order, as many as there is memory for.
-- Returns how many, and their bytes.
local function take(list, most, kept, state, hours)
  local bytes = 0
  if kept > free then kept = recount(state, hours) end
  for i = 1, most do
    local size = #list[i].body + OVERHEAD
    if bytes + size > admit or kept + bytes > free - bytes then return i - 1, bytes end
    bytes = bytes + size
  end
  return most, bytes
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
    out[i] = earlier.body == body and earlier or 'CONFLICT'
  elseif not known then
    local e = {key = key, id = id, body = body, nonce = nonce, at = i}
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

local cutoff = '(' .. (now - retention)
local t, wakes = clock(), {}
for c, list in pairs(new) do
  local prefix, company = ARGV[6 + 2 * c], ARGV[7 + 2 * c]
  local state, hours = prefix .. 'c:' .. company, prefix .. 'cb:' .. company
  local counts = redis.call('HMGET', state, 'pending', 'seq', 'bytes')
  local pending, seq, kept = tonumber(counts[1] or 0), tonumber(counts[2] or 0), tonumber(counts[3] or 0)
  local most = math.min(#list, math.max(limit - pending, 0))
  for i = most + 1, #list do out[list[i].at] = 'BACKLOG_FULL' end
  local fits, bytes = take(list, most, kept, state, hours)
  for i = fits + 1, most do out[list[i].at] = 'STORAGE_FULL' end
  if fits > 0 then
    admit, free = admit - bytes, free - bytes
    local ids, scores, values = {}, {}, {}
    for i = 1, fits do
      local e = list[i]
      ids[i] = e.id
      scores[2 * i - 1], scores[2 * i] = now, e.id
      values[2 * i - 1], values[2 * i] = e.key, READY .. now .. e.nonce .. string.format('%010x', seq + i) .. e.body
    end
    -- The events come last: when Redis refuses any of this, their ids stay unknown.
    local index, all = prefix .. 'ei:' .. company, prefix .. 'companies'
    redis.call('ZADD', index, unpack(scores))
    redis.call('PEXPIRE', index, ttl)
    local old = redis.call('ZRANGEBYSCORE', index, '-inf', cutoff, 'LIMIT', 0, 9 + fits)
    if #old > 0 then redis.call('ZREM', index, unpack(old)) end
    if redis.call('ZADD', all, 'GT', now, company) == 1 then -- clocks of replicas may disagree
      redis.call('ZREMRANGEBYSCORE', all, '-inf', cutoff)
    end
    if join(prefix, company, t) == 1 then wakes[#wakes + 1] = c end
    redis.call('INCRBY', prefix .. 'pending', fits)
    redis.call('RPUSH', prefix .. 'q:' .. company, unpack(ids))
    redis.call('HSET', state, 'pending', pending + fits, 'seq', seq + fits)
    redis.call('HINCRBY', state, 'bytes', bytes)
    if redis.call('HINCRBY', hours, hour_of(now), bytes) == bytes then recount(state, hours) end
    redis.call('MSET', unpack(values))
  end
end
for i, said in ipairs(out) do
  if type(said) == 'table' then -- the same event earlier in this call
    out[i] = out[said.at] == 'ACCEPTED' and 'DUPLICATE' or out[said.at]
  end
end
return {wakes, unpack(out)}
