-- append accepts new events of one company, in order: as READY, in the index, and
-- in the ready queue. Each has id, body and nonce. pending and seq are the counts
-- of the company before. Returns what wake does.
local function append(P, company, events, pending, seq, now, retention, ttl)
  local ids, scores = {}, {}
  for i, e in ipairs(events) do
    ids[i] = e.id
    scores[2 * i - 1], scores[2 * i] = now, e.id
    redis.call('SET', P .. 'e:' .. company .. ':' .. e.id, READY .. now .. e.nonce .. string.format('%010x', seq + i) .. e.body)
  end
  local index, all, cutoff = P .. 'ei:' .. company, P .. 'companies', '(' .. (now - retention)
  redis.call('RPUSH', P .. 'q:' .. company, unpack(ids))
  redis.call('HSET', P .. 'c:' .. company, 'pending', pending + #ids, 'seq', seq + #ids)
  redis.call('INCRBY', P .. 'pending', #ids)
  redis.call('ZADD', index, unpack(scores))
  redis.call('PEXPIRE', index, ttl)
  local old = redis.call('ZRANGEBYSCORE', index, '-inf', cutoff, 'LIMIT', 0, 9 + #ids)
  if #old > 0 then redis.call('ZREM', index, unpack(old)) end
  redis.call('ZADD', all, 'GT', now, company) -- clocks of replicas may disagree
  redis.call('ZREMRANGEBYSCORE', all, '-inf', cutoff)
  return join(P, company, clock())
end
