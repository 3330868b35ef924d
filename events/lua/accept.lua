-- Accepts events, each once, together with their place in the ready queue of
-- their company.
-- KEYS: 1 a partition's due set, 2 a key that never exists
-- ARGV: 1 accepted ms (13 digits), 2 retention ms, 3 index ttl ms, 4 pending
--       events a company may have, 5 number of companies; then for each company
--       the key prefix of its partition and its id; then for each event the
--       number of its company, its id, its body without id and company, and the
--       nonce of this commit (8 hex)
-- Returns the numbers of companies whose partition needs a wake-up, then for each
-- event ACCEPTED, DUPLICATE (same body), CONFLICT (another body) or BACKLOG_FULL.
-- Nothing is written for a known id. The nonce tells a commit that was sent again
-- after its reply was lost, which is still ACCEPTED, from the same event sent twice.
local now, retention, ttl, limit, companies = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
local prefixes = {}
for c = 1, companies do prefixes[c] = ARGV[4 + 2 * c] end
check(prefixes)

-- same tells whether a stored event has this content. Of a compacted one only
-- the digest is kept.
local function same(known, body)
  local kept = string.sub(known, HEADER + 1)
  if string.sub(known, 1, 1) == COMPACTED then return kept == redis.sha1hex(body) end
  return kept == body
end

local out, new, first = {}, {}, {}
for a = 6 + 2 * companies, #ARGV, 4 do
  local c, id, body, nonce = tonumber(ARGV[a]), ARGV[a + 1], ARGV[a + 2], ARGV[a + 3]
  local prefix, company = ARGV[4 + 2 * c], ARGV[5 + 2 * c]
  local key = prefix .. 'e:' .. company .. ':' .. id
  local i = #out + 1
  local earlier = first[key]
  if earlier then
    out[i] = earlier.body == body and (earlier.nonce == nonce and 'ACCEPTED' or earlier) or 'CONFLICT'
  else
    local known = redis.call('GET', key)
    if not known then
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
end

local cutoff = '(' .. (now - retention)
local wakes = {}
for c, list in pairs(new) do
  local prefix, company = ARGV[4 + 2 * c], ARGV[5 + 2 * c]
  local state = prefix .. 'c:' .. company
  local counts = redis.call('HMGET', state, 'pending', 'seq')
  local pending, seq = tonumber(counts[1] or 0), tonumber(counts[2] or 0)
  local fits = math.min(#list, math.max(limit - pending, 0))
  for i = fits + 1, #list do out[list[i].at] = 'BACKLOG_FULL' end
  if fits > 0 then
    local ids, scores = {}, {}
    for i = 1, fits do
      local e = list[i]
      ids[i] = e.id
      scores[2 * i - 1], scores[2 * i] = now, e.id
      redis.call('SET', e.key, READY .. now .. e.nonce .. string.format('%010x', seq + i) .. e.body)
    end
    local index, all = prefix .. 'ei:' .. company, prefix .. 'companies'
    redis.call('RPUSH', prefix .. 'q:' .. company, unpack(ids))
    redis.call('HSET', state, 'pending', pending + fits, 'seq', seq + fits)
    redis.call('INCRBY', prefix .. 'pending', fits)
    redis.call('ZADD', index, unpack(scores))
    redis.call('PEXPIRE', index, ttl)
    local old = redis.call('ZRANGEBYSCORE', index, '-inf', cutoff, 'LIMIT', 0, 9 + fits)
    if #old > 0 then redis.call('ZREM', index, unpack(old)) end
    redis.call('ZADD', all, 'GT', now, company) -- clocks of replicas may disagree
    redis.call('ZREMRANGEBYSCORE', all, '-inf', cutoff)
    if join(prefix, company, clock()) == 1 then wakes[#wakes + 1] = c end
  end
end
for i, said in ipairs(out) do
  if type(said) == 'table' then -- the same event earlier in this call
    out[i] = out[said.at] == 'ACCEPTED' and 'DUPLICATE' or out[said.at]
  end
end
return {wakes, unpack(out)}
