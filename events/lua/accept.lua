-- Accepts events, each once, together with their pending dispatch.
-- KEYS: for each company its index, the open set and the set of companies of its
--       partition; then each event
-- ARGV: 1 accepted ms (13 digits), 2 retention ms, 3 key ttl ms, 4 number of
--       companies; then each company; then for each event the number of its
--       company, its id, its body without id and company, and the nonce of this
--       commit (8 hex)
-- Returns for each event ACCEPTED, DUPLICATE (same body) or CONFLICT (another
-- body). Nothing is written for a known id. The nonce tells a commit that was
-- sent again after its reply was lost, which is still ACCEPTED, from the same
-- event sent twice.
local now, retention, ttl, companies = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])

-- What is kept of an event's body; an older version kept the whole of it.
local function kept(known, company, id)
  local body = string.sub(known, 22)
  local head = '{"id":"' .. id .. '","companyUuid":"' .. company .. '",'
  if string.sub(body, 1, #head) == head then return string.sub(body, #head + 1) end
  return body
end

local out, new, open, ids = {}, {}, {}, {}
for i = 1, #KEYS - 3 * companies do
  local key, a = KEYS[3 * companies + i], companies + 4 * i
  local c, id, body, nonce = tonumber(ARGV[a + 1]), ARGV[a + 2], ARGV[a + 3], ARGV[a + 4]
  local company = ARGV[4 + c]
  local known = new[key] or redis.call('GET', key)
  if not known then
    out[i] = 'ACCEPTED'
    new[key] = now .. nonce .. body
    if not ids[c] then open[c], ids[c] = {}, {} end
    local o, l = open[c], ids[c]
    o[#o + 1], o[#o + 2] = now, company .. '/' .. id
    l[#l + 1], l[#l + 2] = now, id
  elseif kept(known, company, id) ~= body then
    out[i] = 'CONFLICT'
  elseif string.sub(known, 14, 21) ~= nonce then
    out[i] = 'DUPLICATE'
  else
    out[i] = 'ACCEPTED'
  end
end

-- The events themselves come last: should a command before them fail, then
-- their ids are still unknown and the whole can be sent again.
local cutoff = '(' .. (now - retention)
for c, list in pairs(ids) do
  local index, opens, all = KEYS[3 * c - 2], KEYS[3 * c - 1], KEYS[3 * c]
  redis.call('ZADD', opens, unpack(open[c]))
  redis.call('ZADD', index, unpack(list))
  redis.call('PEXPIRE', index, ttl)
  local old = redis.call('ZRANGEBYSCORE', index, '-inf', cutoff, 'LIMIT', 0, 9 + #list / 2)
  if #old > 0 then redis.call('ZREM', index, unpack(old)) end
  redis.call('ZADD', all, 'GT', now, ARGV[4 + c]) -- clocks of replicas may disagree
  redis.call('PEXPIRE', all, ttl)
  redis.call('ZREMRANGEBYSCORE', all, '-inf', cutoff)
end
for key, value in pairs(new) do redis.call('SET', key, value, 'PX', ttl) end
return out
