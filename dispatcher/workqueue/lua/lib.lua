-- Functions that every script which moves work shares. P is the key prefix of
-- a partition; docs/redis.md lists the keys.

local WAKE_MS = 500    -- a wake-up that nobody served for so long is served by the partition's owner
local PASSED = '~'     -- the due set's mark of work whose companies hold their share of a replica
local PASSED_MS = 1000 -- work passed by for so long is served by the partition's owner

-- reference names a delivery in a note.
local function reference(company, id, sub) return company .. '/' .. id .. '/' .. sub end

local EVENT_HEADER = 32 -- what stands before an event's body, see events/lua/lib.lua

-- matched and finished tell whether an event, by its value or the header of it, or a
-- delivery, by its record, needs no more work. What is damaged does: whoever
-- claims it quarantines it.
local function matched(event)
  return type(event) == 'string' and #event >= EVENT_HEADER and string.find(event, '^[MSC]') ~= nil
end
local function finished(record)
  return type(record) == 'string' and string.find(record, '^[DXC]%d+|') ~= nil
end

local function clock()
  local t = redis.call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end

-- wake marks the partition as having work to claim. Returns 1 when the caller
-- is to enqueue a wake-up, 0 when one is under way.
local function wake(P, now)
  return redis.call('ZADD', P .. 'due', 'NX', now + WAKE_MS, '')
end

-- join puts a company that has work to claim into the fair schedule of its
-- partition. An idle company comes back at its finish tag, but not before the
-- virtual time. Returns what wake does.
local function join(P, company, now)
  if not redis.call('ZSCORE', P .. 'sched', company) then
    local v = tonumber(redis.call('GET', P .. 'v') or 0)
    local tag = tonumber(redis.call('HGET', P .. 'c:' .. company, 'tag') or 0)
    redis.call('ZADD', P .. 'sched', math.max(v, tag), company)
  end
  return wake(P, now)
end

-- offer has an endpoint queue served: in its company's turn when its first
-- delivery is due, else when it will be. An endpoint at its in-flight limit is
-- offered again by whoever frees a place. Returns what wake does.
local function offer(P, company, sub, now)
  local e = company .. '/' .. sub
  if redis.call('ZSCORE', P .. 'dq:' .. company, sub) then return 0 end
  local first = redis.call('ZRANGE', P .. 'eq:' .. e, 0, 0, 'WITHSCORES')
  if not first[1] then return 0 end
  local state = redis.call('HMGET', P .. 'es:' .. e, 'until', 'full')
  if state[2] then return 0 end
  local at = math.max(tonumber(first[2]), tonumber(state[1] or 0))
  if at > now then
    redis.call('ZADD', P .. 'due', at, 'e:' .. e)
    return 0
  end
  redis.call('ZREM', P .. 'due', 'e:' .. e)
  redis.call('ZADD', P .. 'dq:' .. company, now, sub)
  return join(P, company, now)
end

-- put appends a delivery to its endpoint queue, due at a time. Returns what
-- wake does.
local function put(P, company, sub, id, at, now)
  redis.call('ZADD', P .. 'eq:' .. company .. '/' .. sub, at, id)
  return offer(P, company, sub, now)
end

-- take_out removes a delivery from its endpoint queue, if it waits there. A
-- queue that is empty then is not to be served any more.
local function take_out(P, company, sub, id)
  local e = company .. '/' .. sub
  if redis.call('ZREM', P .. 'eq:' .. e, id) == 0 or redis.call('EXISTS', P .. 'eq:' .. e) == 1 then return end
  redis.call('ZREM', P .. 'due', 'e:' .. e)
  redis.call('SREM', P .. 'bl:' .. company, sub)
end

-- in_flight tells whether an attempt of a delivery that was claimed from its
-- endpoint queue is under way.
local function in_flight(P, company, sub, id)
  return redis.call('HEXISTS', P .. 'ef:' .. company .. '/' .. sub, id) == 1
end

-- claim_name names one claim of a delivery: who claimed it, and the version of
-- its record then ('' for none), which no other claim of it by that replica has.
local function claim_name(replica, version) return replica .. ' ' .. version end

-- release frees the place that a delivery has in its endpoint's in-flight limit.
local function release(P, company, sub, id)
  local e = company .. '/' .. sub
  redis.call('HDEL', P .. 'ef:' .. e, id)
  redis.call('HDEL', P .. 'es:' .. e, 'full')
end

-- free ends a replica's claim of a delivery of an endpoint queue, and reports
-- whether there was one. It ends no other claim: of a replica that took the
-- delivery over, or a later one by the same replica.
local function free(P, replica, company, sub, id, version)
  local by = redis.call('HGET', P .. 'ef:' .. company .. '/' .. sub, id)
  if by and by ~= claim_name(replica, version)
    or redis.call('HDEL', P .. 'n:' .. replica, reference(company, id, sub)) == 0 then
    return false
  end
  release(P, company, sub, id)
  return true
end

-- version_of reads the version of a delivery's record, '' when it has none.
local function version_of(record)
  local bar = record and string.find(record, '|', 1, true)
  return bar and string.sub(record, 2, bar - 1) or ''
end
