-- recount removes the hours of events that are past retention, and returns the bytes that
-- the company keeps: of events, and of answers of requests, which expire after a day.
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
  local answers = 0
  counts = redis.call('HGETALL', P .. 'ib:' .. company)
  for i = 1, #counts, 2 do
    if tonumber(counts[i]) >= hour_of(now) - 24 then answers = answers + counts[i + 1] end
  end
  redis.call('HSET', P .. 'c:' .. company, 'bytes', total, 'answers', answers)
  redis.call('PEXPIRE', hours, ttl + HOUR)
  return total + answers
end

-- The place of an event in the index is the millisecond in which it was accepted plus a
-- fraction. Places grow with the numbers of events in the company, even if clocks do not,
-- so the index has the order of the numbers.
local PLACE = 1 / 1024

-- first_place returns the place of the first of n events (at most 1,024) that are accepted
-- now, all in the same millisecond. last is the place of the company's last event.
local function first_place(now, last, n)
  local at = math.max(now, last + PLACE)
  if at % 1 + n * PLACE > 1 then at = math.floor(at) + 1 end
  return at
end

-- open_block stores where the block of an event number begins in the index, if the block
-- has no event yet. It also removes some blocks whose events are all past retention.
local function open_block(numbers, state, number, at, cutoff, ttl)
  local b = block_of(number)
  local opened = redis.call('HSETNX', numbers, b, at)
  redis.call('PEXPIRE', numbers, ttl)
  if opened == 0 then return end
  if redis.call('HLEN', numbers) == 1 then
    redis.call('HSET', state, 'first', b)
    return
  end
  local first = tonumber(redis.call('HGET', state, 'first') or b)
  local kept = first
  for _ = 1, 8 do
    local following = redis.call('HGET', numbers, kept + 1)
    if kept >= b or following and tonumber(following) >= cutoff then break end
    redis.call('HDEL', numbers, kept, kept .. 'c')
    kept = kept + 1
  end
  if kept > first then redis.call('HSET', state, 'first', kept) end
end

-- append accepts new events of one company, in order: as READY, and in the index. Each event has id, body and
-- nonce. pending and seq are the company's counts before the call, last is the place of its last event. The times of
-- acceptance in a company never decrease. mine: the caller is the partition's owner, and gets the events in the
-- answer; else the owner is told. Returns the place of the first event, and the result of tell.
local function append(P, company, events, pending, seq, last, now, retention, mine)
  local ids, scores, values, bytes = {}, {}, {}, 0
  local ttl = retention + GRACE
  local cutoff, at = now - retention, first_place(now, last, #events)
  local accepted = math.floor(at)
  local head, prefix = string.format('%s%013.0f', READY, accepted), P .. 'e:' .. company .. ':'
  for i, e in ipairs(events) do
    ids[i] = e.id
    scores[2 * i - 1], scores[2 * i] = at + (i - 1) * PLACE, e.id
    values[2 * i - 1] = prefix .. e.id
    values[2 * i] = head .. e.nonce .. string.format('%010x', seq + i) .. e.body
    bytes = bytes + #e.body + OVERHEAD
  end
  -- The events are written last: if Redis refuses an earlier command, their ids stay
  -- unknown.
  local index, all, state = P .. 'ei:' .. company, P .. 'companies', P .. 'c:' .. company
  redis.call('ZADD', index, unpack(scores))
  redis.call('PEXPIRE', index, ttl)
  local old = redis.call('ZRANGEBYSCORE', index, '-inf', '(' .. cutoff, 'LIMIT', 0, 9 + #ids)
  if #old > 0 then -- the owner reads what is beyond the cursor by the index
    old = redis.call('ZRANGEBYSCORE', index, '-inf', '(' .. math.min(cutoff, redis.call('HGET', state, 'cursor') or 0), 'LIMIT', 0, #old)
  end
  if #old > 0 then redis.call('ZREM', index, unpack(old)) end
  -- The first event of a block opens the block. So does the first event after an hour
  -- without events, because the block may have been removed in that time.
  local numbers, from = P .. 'en:' .. company, seq + 1
  if block_of(seq) ~= block_of(from) or at - last >= HOUR then
    open_block(numbers, state, from, at, cutoff, ttl + BLOCK * HOUR)
  end
  local first = block_of(seq + #ids) * BLOCK
  if first > from then
    open_block(numbers, state, first, at + (first - from) * PLACE, cutoff, ttl + BLOCK * HOUR)
  end
  redis.call('HINCRBY', state, 'bytes', bytes)
  if redis.call('HINCRBY', P .. 'cb:' .. company, hour_of(accepted), bytes) == bytes then
    recount(P, company, accepted, retention, ttl)
  end
  -- GT: the clocks of replicas may differ
  if redis.call('ZADD', all, 'GT', accepted, company) == 1 then
    redis.call('ZREMRANGEBYSCORE', all, '-inf', '(' .. cutoff)
  end
  redis.call('SADD', P .. 'active', company)
  local told = mine and 0 or tell(P, 'c:' .. company)
  redis.call('INCRBY', P .. 'pending', #ids)
  redis.call('HSET', state, 'pending', pending + #ids, 'seq', seq + #ids, 'at', at + (#ids - 1) * PLACE)
  redis.call('MSET', unpack(values))
  return at, told
end
