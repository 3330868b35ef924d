-- recount drops the hours whose events are not kept any more, and returns the
-- bytes that the company keeps.
local function recount(P, company, now, retention, ttl)
  local hours, total, old = P .. 'cb:' .. company, 0, {}
  local oldest = hour_of(now - retention)
  local counts = redis.call('HGETALL', hours)
  for i = 1, #counts, 2 do
    if tonumber(counts[i]) < oldest then
      old[#old + 1] = counts[i]
    else
      total = total + counts[i + 1]
    end
  end
  if #old > 0 then redis.call('HDEL', hours, unpack(old)) end
  redis.call('HSET', P .. 'c:' .. company, 'bytes', total)
  redis.call('PEXPIRE', hours, ttl + HOUR)
  return total
end

-- append accepts new events of one company, in order: as READY, in the index, and
-- in the ready queue. Each has id, body and nonce. pending and seq are the counts
-- of the company before. Returns what wake does.
local function append(P, company, events, pending, seq, now, retention, ttl)
  local ids, scores, values, bytes = {}, {}, {}, 0
  for i, e in ipairs(events) do
    ids[i] = e.id
    scores[2 * i - 1], scores[2 * i] = now, e.id
    values[2 * i - 1] = P .. 'e:' .. company .. ':' .. e.id
    values[2 * i] = READY .. now .. e.nonce .. string.format('%010x', seq + i) .. e.body
    bytes = bytes + #e.body + OVERHEAD
  end
  -- The events come last: when Redis refuses any of this, their ids stay unknown.
  local index, all, state = P .. 'ei:' .. company, P .. 'companies', P .. 'c:' .. company
  local cutoff = '(' .. (now - retention)
  redis.call('ZADD', index, unpack(scores))
  redis.call('PEXPIRE', index, ttl)
  local old = redis.call('ZRANGEBYSCORE', index, '-inf', cutoff, 'LIMIT', 0, 9 + #ids)
  if #old > 0 then redis.call('ZREM', index, unpack(old)) end
  if redis.call('ZADD', all, 'GT', now, company) == 1 then -- clocks of replicas may disagree
    redis.call('ZREMRANGEBYSCORE', all, '-inf', cutoff)
  end
  local woken = join(P, company, clock())
  redis.call('INCRBY', P .. 'pending', #ids)
  redis.call('RPUSH', P .. 'q:' .. company, unpack(ids))
  redis.call('HSET', state, 'pending', pending + #ids, 'seq', seq + #ids)
  redis.call('HINCRBY', state, 'bytes', bytes)
  if redis.call('HINCRBY', P .. 'cb:' .. company, hour_of(now), bytes) == bytes then
    recount(P, company, now, retention, ttl)
  end
  redis.call('MSET', unpack(values))
  return woken
end
