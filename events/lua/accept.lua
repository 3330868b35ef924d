-- Accepts one event once, together with its pending dispatch.
-- KEYS: 1 event, 2 index of its company, 3 open set, 4 companies of the partition
-- ARGV: 1 accepted ms (13 digits), 2 nonce of this commit (8 hex), 3 body,
--       4 event id, 5 company, 6 event reference, 7 retention ms, 8 key ttl ms
-- Returns ACCEPTED, DUPLICATE (same body) or CONFLICT (another body). Nothing is
-- written for a known id. The nonce tells a commit that was sent again after
-- its reply was lost, which is still ACCEPTED, from the same event sent twice.
local known = redis.call('GET', KEYS[1])
if known then
  if string.sub(known, 22) ~= ARGV[3] then return 'CONFLICT' end
  if string.sub(known, 14, 21) ~= ARGV[2] then return 'DUPLICATE' end
  return 'ACCEPTED'
end

-- The event itself comes last: should a command before it fail, then the id is
-- still unknown and the whole can be sent again.
local cutoff = '(' .. (tonumber(ARGV[1]) - tonumber(ARGV[7]))
redis.call('ZADD', KEYS[3], ARGV[1], ARGV[6])
redis.call('ZADD', KEYS[2], ARGV[1], ARGV[4])
redis.call('PEXPIRE', KEYS[2], ARGV[8])
local old = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', cutoff, 'LIMIT', 0, 10)
if #old > 0 then redis.call('ZREM', KEYS[2], unpack(old)) end
redis.call('ZADD', KEYS[4], 'GT', ARGV[1], ARGV[5]) -- clocks of replicas may disagree
redis.call('PEXPIRE', KEYS[4], ARGV[8])
redis.call('ZREMRANGEBYSCORE', KEYS[4], '-inf', cutoff)
redis.call('SET', KEYS[1], ARGV[1] .. ARGV[2] .. ARGV[3], 'PX', ARGV[8])
return 'ACCEPTED'
