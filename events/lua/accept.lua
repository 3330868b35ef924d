-- Accepts events of one company, each once, together with their pending dispatch.
-- KEYS: 1 index of the company, 2 open set, 3 companies of the partition, then
--       each event
-- ARGV: 1 accepted ms (13 digits), 2 retention ms, 3 key ttl ms, 4 company;
--       then for each event its id, its body without id and company, and the
--       nonce of this commit (8 hex)
-- Returns for each event ACCEPTED, DUPLICATE (same body) or CONFLICT (another
-- body). Nothing is written for a known id. The nonce tells a commit that was
-- sent again after its reply was lost, which is still ACCEPTED, from the same
-- event sent twice.
local now, ttl, company = ARGV[1], ARGV[3], ARGV[4]
local out, new, open, ids = {}, {}, {}, {}

-- What is kept of an event's body; an older version kept the whole of it.
local function body(known, id)
  local kept = string.sub(known, 22)
  local head = '{"id":"' .. id .. '","companyUuid":"' .. company .. '",'
  if string.sub(kept, 1, #head) == head then return string.sub(kept, #head + 1) end
  return kept
end

for i = 1, #KEYS - 3 do
  local key, id, new_body, nonce = KEYS[i + 3], ARGV[3 * i + 2], ARGV[3 * i + 3], ARGV[3 * i + 4]
  local known = new[key] or redis.call('GET', key)
  if not known then
    out[i] = 'ACCEPTED'
    new[key] = now .. nonce .. new_body
    open[#open + 1], open[#open + 2] = now, company .. '/' .. id
    ids[#ids + 1], ids[#ids + 2] = now, id
  elseif body(known, id) ~= new_body then
    out[i] = 'CONFLICT'
  elseif string.sub(known, 14, 21) ~= nonce then
    out[i] = 'DUPLICATE'
  else
    out[i] = 'ACCEPTED'
  end
end
if #open == 0 then return out end

-- The events themselves come last: should a command before them fail, then
-- their ids are still unknown and the whole can be sent again.
local cutoff = '(' .. (tonumber(now) - tonumber(ARGV[2]))
redis.call('ZADD', KEYS[2], unpack(open))
redis.call('ZADD', KEYS[1], unpack(ids))
redis.call('PEXPIRE', KEYS[1], ttl)
local old = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', cutoff, 'LIMIT', 0, 9 + #ids / 2)
if #old > 0 then redis.call('ZREM', KEYS[1], unpack(old)) end
redis.call('ZADD', KEYS[3], 'GT', now, company) -- clocks of replicas may disagree
redis.call('PEXPIRE', KEYS[3], ttl)
redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', cutoff)
for key, value in pairs(new) do redis.call('SET', key, value, 'PX', ttl) end
return out
