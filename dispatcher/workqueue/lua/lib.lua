-- Functions that every script which moves work shares. P is the key prefix of
-- a partition; docs/redis.md lists the keys.

local WAKE_MS = 500    -- a wake-up that nobody served for so long is served by the partition's owner
local PASSED = '~'     -- the due set's mark of work whose companies hold their share of a replica
local PASSED_MS = 1000 -- work passed by for so long is served by the partition's owner

-- reference names a delivery in a note.
local function reference(company, id, sub) return company .. '/' .. id .. '/' .. sub end

-- unmatched tells whether an event waits for its subscribers to be matched, by the
-- first byte of what is kept of it. One that is missing or cannot be read does, so
-- that it comes to a replica, which quarantines it.
local function unmatched(state)
  return state ~= 'M' and state ~= 'S' and state ~= 'C'
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

-- take_out removes a delivery from its endpoint queue, if it waits there.
local function take_out(P, company, sub, id)
  redis.call('ZREM', P .. 'eq:' .. company .. '/' .. sub, id)
end

-- in_flight tells whether an attempt of a delivery that was claimed from its
-- endpoint queue is under way.
local function in_flight(P, company, sub, id)
  return redis.call('HEXISTS', P .. 'ef:' .. company .. '/' .. sub, id) == 1
end

-- free ends a replica's note of a delivery that it claimed from its endpoint
-- queue. A replica whose work was taken over frees nothing of its successor's.
local function free(P, replica, company, sub, id)
  local e = company .. '/' .. sub
  redis.call('HDEL', P .. 'n:' .. replica, reference(company, id, sub))
  if redis.call('HGET', P .. 'ef:' .. e, id) == replica then
    redis.call('HDEL', P .. 'ef:' .. e, id)
    redis.call('HDEL', P .. 'es:' .. e, 'full')
  end
end
