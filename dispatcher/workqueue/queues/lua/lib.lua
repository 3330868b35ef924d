-- Functions that every script which moves work shares. P is the key prefix of
-- a partition; docs/redis.md lists the keys.

local WAKE_MS = 500    -- a wake-up that nobody served for so long is served by the partition's owner
local PASSED = '~'     -- the due set's mark of work whose companies hold their share of a replica
local FREED_MS = 100   -- a freed place is used by then at the latest
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

-- An endpoint queue is scored by when each delivery is due. That of an ordered
-- subscriber is scored by IN_ORDER and the event's number in the company, which no
-- time reaches: what waited before it was ordered comes first.
local IN_ORDER = 1e13

-- endpoint reads how an endpoint queue is to be served: until (not before), full (at
-- its in-flight limit; it is served again with so many in flight), paused (since when), ordered, numbered (it is, or was,
-- ordered), held (an ordered one's first delivery is not due before), fails
-- (unreachable attempts in a row), interval (ms between two deliveries), burst, tat
-- (when the next one is due at that rate), ondead (it is paused after a dead delivery).
-- All are numbers or nil.
local FIELDS = {'until', 'full', 'paused', 'ordered', 'numbered', 'held', 'fails', 'interval', 'burst', 'tat', 'ondead'}
local function endpoint(P, e)
  local s = {}
  for i, value in ipairs(redis.call('HMGET', P .. 'es:' .. e, unpack(FIELDS))) do s[FIELDS[i]] = tonumber(value) end
  return s
end

-- managed tells whether all deliveries of an endpoint go by its queue.
local function managed(s) return s.interval or s.ordered or s.paused end

-- first_due tells when the first delivery of an endpoint queue is due, in ms; nil
-- when there is none.
local function first_due(queue, s)
  local first = redis.call('ZRANGE', queue, 0, 0, 'WITHSCORES')
  if not first[1] then return nil end
  local at = tonumber(first[2])
  if at >= IN_ORDER then return s.ordered and s.held or 0 end
  if s.numbered and not s.ordered then
    local last = redis.call('ZRANGE', queue, -1, -1, 'WITHSCORES')
    if tonumber(last[2]) >= IN_ORDER then return 0 end
  end
  return at
end

-- rate_allows tells how many deliveries an endpoint's rate allows now, and when it
-- allows one (the generic cell rate algorithm, ITU-T I.371).
local function rate_allows(s, now)
  if not s.interval then return math.huge, 0 end
  local tat = math.max(s.tat or 0, now)
  return math.floor((now - tat) / s.interval + s.burst + 1e-6), math.ceil(tat - (s.burst - 1) * s.interval)
end

-- offer has an endpoint queue served: in its company's turn when its first
-- delivery is due, else when it will be. An endpoint at its in-flight limit is
-- offered again by whoever frees a place, a paused one when it is resumed. s is what
-- endpoint read, when the caller has it. Returns what wake does.
local function offer(P, company, sub, now, s)
  local e = company .. '/' .. sub
  local queue = P .. 'eq:' .. e
  if redis.call('ZSCORE', P .. 'dq:' .. company, sub) or redis.call('EXISTS', queue) == 0 then return 0 end
  s = s or endpoint(P, e)
  if s.full or s.paused then return 0 end
  local _, at_rate = rate_allows(s, now)
  local at = math.max(first_due(queue, s), s['until'] or 0, at_rate)
  if at > now then
    redis.call('ZADD', P .. 'due', at, 'e:' .. e)
    return 0
  end
  redis.call('ZREM', P .. 'due', 'e:' .. e)
  redis.call('ZADD', P .. 'dq:' .. company, now, sub)
  return join(P, company, now)
end

-- number_of reads the number of an event in its company; 0 when it is gone.
local function number_of(P, company, id)
  local digits = redis.pcall('GETRANGE', P .. 'e:' .. company .. ':' .. id, 22, 31)
  return type(digits) == 'string' and tonumber(digits, 16) or 0
end

-- put appends a delivery to its endpoint queue, due at a time. The first one of an
-- ordered subscriber holds the others until then. Returns what wake does.
local function put(P, company, sub, id, at, now)
  local e = company .. '/' .. sub
  local queue, state = P .. 'eq:' .. e, P .. 'es:' .. e
  if redis.call('HGET', state, 'ordered') then
    redis.call('ZADD', queue, IN_ORDER + number_of(P, company, id), id)
    if redis.call('ZRANGE', queue, 0, 0)[1] == id then redis.call('HSET', state, 'held', at) end
  else
    redis.call('ZADD', queue, at, id)
  end
  return offer(P, company, sub, now)
end

-- put_back appends a delivery that was claimed to its endpoint queue, unless it is
-- there or has come to its end; an ordered one due after some ms. Returns what wake does.
local function put_back(P, company, sub, id, now, ms)
  local record = redis.pcall('HGET', P .. 'd:' .. company .. '/' .. id, sub)
  local e = company .. '/' .. sub
  if finished(record) or redis.call('ZSCORE', P .. 'eq:' .. e, id) then return offer(P, company, sub, now) end
  if redis.call('HEXISTS', P .. 'es:' .. e, 'ordered') == 0 then ms = 0 end
  return put(P, company, sub, id, now + ms, now)
end

-- take_out removes a delivery from its endpoint queue, if it waits there. A
-- queue that is empty then is not to be served any more.
local function take_out(P, company, sub, id)
  local e = company .. '/' .. sub
  if redis.call('ZREM', P .. 'eq:' .. e, id) == 0 or redis.call('EXISTS', P .. 'eq:' .. e) == 1 then return end
  redis.call('ZREM', P .. 'due', 'e:' .. e)
  if not managed(endpoint(P, e)) then redis.call('SREM', P .. 'bl:' .. company, sub) end
end

-- Of a company with ordered subscribers, os:<company> are these, and om:<company>
-- the events, by number, that were claimed and not matched yet: an ordered delivery
-- waits for the earlier ones of them. in_order notes that events were claimed, and
-- end_order that they were matched, which returns what wake does.
local function in_order(P, company, numbers_and_ids)
  if #numbers_and_ids > 0 then redis.call('ZADD', P .. 'om:' .. company, unpack(numbers_and_ids)) end
end

local function end_order(P, company, ids, now)
  if redis.call('ZREM', P .. 'om:' .. company, unpack(ids)) == 0 then return 0 end
  local wakes = 0
  for _, sub in ipairs(redis.call('SMEMBERS', P .. 'os:' .. company)) do wakes = wakes + offer(P, company, sub, now) end
  return wakes
end

-- configure sets how an endpoint is served: ms between two deliveries and the burst
-- ('' for no rate), '1' for ordered, '1' for a pause after a dead delivery. Returns
-- what wake does.
local function configure(P, company, sub, interval, burst, ordered, pause_on_dead, now)
  local e = company .. '/' .. sub
  local state, companies = P .. 'es:' .. e, P .. 'c:' .. company
  local function set(field, value)
    if value ~= '' then redis.call('HSET', state, field, value) else redis.call('HDEL', state, field) end
  end
  set('interval', interval)
  set('burst', burst)
  set('ordered', ordered)
  set('ondead', pause_on_dead)
  if interval == '' then redis.call('HDEL', state, 'tat') end
  if ordered ~= '' then
    redis.call('HSET', state, 'numbered', 1)
    redis.call('SADD', P .. 'os:' .. company, sub)
    redis.call('HSET', companies, 'ordered', 1)
  else
    redis.call('HDEL', state, 'held')
    if redis.call('SREM', P .. 'os:' .. company, sub) == 1 and redis.call('EXISTS', P .. 'os:' .. company) == 0 then
      redis.call('HDEL', companies, 'ordered')
      redis.call('DEL', P .. 'om:' .. company)
    end
  end
  local s = endpoint(P, e)
  if managed(s) then redis.call('SADD', P .. 'bl:' .. company, sub)
  elseif redis.call('EXISTS', P .. 'eq:' .. e) == 0 then redis.call('SREM', P .. 'bl:' .. company, sub) end
  redis.call('HDEL', state, 'full') -- its limit may be another one
  return offer(P, company, sub, now)
end

local CHANGES, CHANGES_S = 50, 691200 -- kept of a subscriber: so many, for 8 days

-- changed notes that an endpoint's subscriber was paused, resumed, disabled or enabled,
-- or began to fail or recovered. The list is only shown: a damaged key must not fail the script.
local function changed(P, e, what, now)
  local key = P .. 'hs:' .. e
  redis.pcall('LPUSH', key, string.format('%.0f %s', now, what))
  redis.pcall('LTRIM', key, 0, CHANGES - 1)
  redis.pcall('EXPIRE', key, CHANGES_S)
end

local PAUSED = '!' -- before the subscriber: it is also paused

-- pause keeps an endpoint queue from being served, for a reason.
local function pause(P, company, sub, why, now)
  local e = company .. '/' .. sub
  if redis.call('HSETNX', P .. 'es:' .. e, 'paused', now) == 0 then return end
  redis.call('HSET', P .. 'es:' .. e, 'why', why)
  changed(P, e, 'paused', now)
  redis.call('SADD', P .. 'bl:' .. company, sub, PAUSED .. sub)
  redis.call('ZREM', P .. 'dq:' .. company, sub)
  redis.call('ZREM', P .. 'due', 'e:' .. e)
end

-- resume has a paused endpoint queue served again. Returns what wake does.
local function resume(P, company, sub, now)
  local e = company .. '/' .. sub
  if redis.call('HDEL', P .. 'es:' .. e, 'paused', 'why') > 0 then changed(P, e, 'resumed', now) end
  redis.call('SREM', P .. 'bl:' .. company, PAUSED .. sub)
  if not managed(endpoint(P, e)) and redis.call('EXISTS', P .. 'eq:' .. e) == 0 then redis.call('SREM', P .. 'bl:' .. company, sub) end
  return offer(P, company, sub, now)
end

-- in_flight tells whether an attempt of a delivery that was claimed from its
-- endpoint queue is under way.
local function in_flight(P, company, sub, id)
  return redis.call('HEXISTS', P .. 'ef:' .. company .. '/' .. sub, id) == 1
end

-- claim_name names one claim of a delivery: who claimed it, and the version of
-- its record then ('' for none), which no other claim of it by that replica has.
local function claim_name(replica, version) return replica .. ' ' .. version end

-- freed notes that places in an endpoint's in-flight limit were freed. s is what
-- endpoint read. Call offer then.
local function freed(P, e, s, now)
  if not s.full then return end
  if redis.call('HLEN', P .. 'ef:' .. e) <= s.full then
    redis.call('HDEL', P .. 'es:' .. e, 'full')
    s.full = nil
  else -- should no other place be freed soon
    redis.call('ZADD', P .. 'due', 'LT', now + FREED_MS, 'e:' .. e)
  end
end

-- release frees the place that a delivery has in its endpoint's in-flight limit. Call
-- offer then.
local function release(P, company, sub, id)
  local e = company .. '/' .. sub
  redis.call('HDEL', P .. 'ef:' .. e, id)
  freed(P, e, {full = tonumber(redis.call('HGET', P .. 'es:' .. e, 'full'))}, clock())
end

-- version_of reads the version of a delivery's record, '' when it has none.
local function version_of(record)
  local bar = record and string.find(record, '|', 1, true)
  return bar and string.sub(record, 2, bar - 1) or ''
end

-- promote moves what became due, at most so many, into the turns of its companies:
-- endpoint queues and jobs. A wake-up that nobody served is put off, so that only
-- this caller serves it. Returns more than 0 when the partition has work to claim for
-- which nobody else is coming.
local function promote(P, most, now)
  local wakes = 0
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', P .. 'due', '-inf', now, 'LIMIT', 0, most)) do
    local kind, company, rest = string.match(member, '^(%a):([^/]*)/(.*)$')
    if not kind then
      redis.call('ZADD', P .. 'due', now + WAKE_MS, member)
      wakes = wakes + 1
    else
      redis.call('ZREM', P .. 'due', member)
      if kind == 'e' then
        redis.call('HDEL', P .. 'es:' .. company .. '/' .. rest, 'full')
        wakes = wakes + offer(P, company, rest, now)
      else
        redis.call('RPUSH', P .. 'jq:' .. company, rest)
        wakes = wakes + join(P, company, now)
      end
    end
  end
  return wakes
end
