-- Functions for all scripts that move work. P is the key prefix of a partition.
-- docs/redis.md lists the keys.

local WAKE_MS = 500     -- the partition's owner serves a wake-up that has waited this time
local SKIPPED = '~'     -- due set member for work of companies that hold their share
local FREED_MS = 100    -- time after which a freed place is used at the latest
local SKIPPED_MS = 1000 -- the owner serves work that has been skipped for this time

-- reference returns the name of a delivery in a note.
local function reference(company, id, sub) return company .. '/' .. id .. '/' .. sub end

local EVENT_HEADER = 32 -- bytes before the body of an event, see events/layout/lua/lib.lua

-- matched and finished report whether an event or a delivery needs no more work. matched
-- takes an event's value or header, finished a delivery's record. Damaged ones need work:
-- the replica that claims them quarantines them.
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

-- time_of returns the time that a caller gives in ms, or Redis's time for ''. Only tests give one: the
-- clock of a replica must not decide when something is removed.
local function time_of(ms) return tonumber(ms) or clock() end

-- work_time returns the time of a partition's work, in ms: all that is due at a time is stored and compared by
-- it. It is Redis's time, but does not go back when that does, as after a failover to a server whose clock is
-- behind: the work would wait for as long. It then runs slower by a tenth, until it is Redis's time again. A
-- script that only reads does not note the time.
local NOTED_MS = 1000 -- the time is noted this often
local times = {}
local function work_time(P, reads)
  if times[P] then return times[P] end
  local noted = redis.call('HMGET', P .. 'clock', 'last', 'ahead')
  local now, last, ahead = clock(), tonumber(noted[1] or 0), tonumber(noted[2] or 0)
  local passed = now + ahead - last
  ahead = math.max(0, ahead - (passed < 0 and passed or math.floor(passed / 10)))
  if not reads and (passed < 0 or passed >= NOTED_MS) then redis.call('HSET', P .. 'clock', 'last', now + ahead, 'ahead', ahead) end
  times[P] = now + ahead
  return times[P]
end

-- wake marks the partition as having work to claim. Returns 1 when the caller must enqueue
-- a wake-up, 0 when a wake-up is under way.
local function wake(P, now)
  return redis.call('ZADD', P .. 'due', 'NX', now + WAKE_MS, '')
end

-- join adds a company with work to claim to the fair schedule of its partition. An idle
-- company joins at its finish tag, but not before the virtual time. Returns the result of
-- wake.
local function join(P, company, now)
  if not redis.call('ZSCORE', P .. 'sched', company) then
    local v = tonumber(redis.call('GET', P .. 'v') or 0)
    local tag = tonumber(redis.pcall('HGET', P .. 'c:' .. company, 'tag')) or 0 -- 0 too for a value of the wrong type
    redis.call('ZADD', P .. 'sched', math.max(v, tag), company)
  end
  return wake(P, now)
end

-- The score of a delivery in an endpoint queue is its due time. For an ordered subscriber
-- the score is IN_ORDER plus the event's number in the company. No time reaches IN_ORDER,
-- so deliveries that were queued before the subscriber was ordered come first.
local IN_ORDER = 1e13

-- endpoint reads how an endpoint queue is served. All fields are numbers or nil:
--   until: the queue is not served before this time
--   full: at its in-flight limit; the queue is served again at this number in flight
--   paused: time of the pause
--   ordered: the subscriber is ordered
--   numbered: the subscriber is or was ordered
--   held: the first delivery of an ordered subscriber is not due before this time
--   fails: unreachable attempts in a row
--   interval: ms between two deliveries at the rate
--   burst: deliveries that the rate allows at once
--   tat: time of the next delivery at the rate
--   ondead: a dead delivery pauses the subscriber
--   gone: the subscriber was deleted: all its deliveries are due, and are cancelled once claimed
local FIELDS = {'until', 'full', 'paused', 'ordered', 'numbered', 'held', 'fails', 'interval', 'burst', 'tat', 'ondead', 'gone'}
local function endpoint(P, e)
  local s = {}
  for i, value in ipairs(redis.call('HMGET', P .. 'es:' .. e, unpack(FIELDS))) do s[FIELDS[i]] = tonumber(value) end
  if s.gone then s['until'], s.fails = nil, nil end
  return s
end

-- managed reports whether all deliveries of an endpoint must pass through its queue.
local function managed(s) return s.interval or s.ordered or s.paused end

-- mixed reports whether the subscriber of an endpoint queue was ordered and is not any more. The
-- queue may then have deliveries in order, which are due, behind deliveries with a due time.
local function mixed(s) return s.numbered and not s.ordered and not s.gone end

-- due_at returns when a delivery is due, by its score in an endpoint queue.
local function due_at(score, s)
  if s.gone then return 0 end
  local at = tonumber(score)
  if at >= IN_ORDER then return s.ordered and s.held or 0 end
  return at
end

-- first_due returns when the first delivery of an endpoint queue is due, in ms; nil when the
-- queue is empty. score is that of its first member, if the caller has it.
local function first_due(queue, s, score)
  score = score or redis.call('ZRANGE', queue, 0, 0, 'WITHSCORES')[2]
  if not score then return nil end
  if mixed(s) and tonumber(redis.call('ZRANGE', queue, -1, -1, 'WITHSCORES')[2]) >= IN_ORDER then return 0 end
  return due_at(score, s)
end

-- rate_allows returns how many deliveries an endpoint's rate allows now, and when it allows
-- one (the generic cell rate algorithm, ITU-T I.371).
local function rate_allows(s, now)
  if not s.interval then return math.huge, 0 end
  local tat = math.max(s.tat or 0, now)
  return math.floor((now - tat) / s.interval + s.burst + 1e-6), math.ceil(tat - (s.burst - 1) * s.interval)
end

-- offer schedules the service of an endpoint queue: in its company's turn when its first
-- delivery may be served now, else later by the due set. It does nothing for an endpoint at
-- its in-flight limit, which is offered again after a place was freed, nor for a paused
-- one, which resume offers. s is the result of endpoint, if the caller has it. Returns the
-- result of wake.
local function offer(P, company, sub, now, s)
  local e = company .. '/' .. sub
  local queue = P .. 'eq:' .. e
  if redis.call('ZSCORE', P .. 'dq:' .. company, sub) then return 0 end
  local score = redis.call('ZRANGE', queue, 0, 0, 'WITHSCORES')[2]
  if not score then return 0 end
  if not s or s.ordered then s = endpoint(P, e) end -- put may have changed held since
  if s.full or s.paused then return 0 end
  local _, at_rate = rate_allows(s, now)
  local at = math.max(first_due(queue, s, score), s['until'] or 0, at_rate)
  if at > now then
    redis.call('ZADD', P .. 'due', at, 'e:' .. e)
    return 0
  end
  redis.call('ZREM', P .. 'due', 'e:' .. e)
  redis.call('ZADD', P .. 'dq:' .. company, now, sub)
  return join(P, company, now)
end

-- number_of returns the number of an event in its company; 0 without a readable event.
local function number_of(P, company, id)
  local digits = redis.pcall('GETRANGE', P .. 'e:' .. company .. ':' .. id, 22, 31)
  return type(digits) == 'string' and tonumber(digits, 16) or 0
end

-- put adds a delivery to its endpoint queue, due at the time at. The first delivery of an
-- ordered subscriber delays the others until it is due. Returns the result of wake.
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

-- put_back requeues a claimed delivery in its endpoint queue, unless the queue has it or it
-- is finished. A delivery of an ordered subscriber is due after ms, others are due now.
-- Returns the result of wake.
local function put_back(P, company, sub, id, now, ms)
  local record = redis.pcall('HGET', P .. 'd:' .. company .. '/' .. id, sub)
  local e = company .. '/' .. sub
  local settled = not record and redis.pcall('GETRANGE', P .. 'e:' .. company .. ':' .. id, 0, 0) == 'S' -- has the records
  if finished(record) or settled or redis.call('ZSCORE', P .. 'eq:' .. e, id) then return offer(P, company, sub, now) end
  if redis.call('HEXISTS', P .. 'es:' .. e, 'ordered') == 0 then ms = 0 end
  return put(P, company, sub, id, now + ms, now)
end

-- went_back notes in back that claimed work of a company was put back before it was tried: since when that
-- happens, with no pause of BACK_MS, and when it last happened. The note is for display only: a damaged key must
-- not fail the script.
local BACK_MS = 30000
local function went_back(P, company, now)
  local since, last = string.match(tostring(redis.pcall('HGET', P .. 'back', company)), '^(%d+) (%d+)$')
  if not last or last + BACK_MS < now then since = now end
  redis.pcall('HSET', P .. 'back', company, string.format('%.0f %.0f', since, now))
  redis.pcall('PEXPIRE', P .. 'back', BACK_MS)
end

-- take_out removes a delivery from its endpoint queue, if the queue has it. A queue that is
-- empty after that is not served any more.
local function take_out(P, company, sub, id)
  local e = company .. '/' .. sub
  if redis.call('ZREM', P .. 'eq:' .. e, id) == 0 or redis.call('EXISTS', P .. 'eq:' .. e) == 1 then return end
  redis.call('ZREM', P .. 'due', 'e:' .. e)
  if not managed(endpoint(P, e)) then redis.call('SREM', P .. 'bl:' .. company, sub) end
end

-- For a company with ordered subscribers, os:<company> has these subscribers, and om:<company>
-- the events, by number, that are claimed and not matched yet. An ordered delivery waits until
-- all earlier events are matched. begin_order adds claimed events. end_order removes matched
-- events, offers the ordered queues and returns the result of wake.
local function begin_order(P, company, numbers_and_ids)
  if #numbers_and_ids > 0 then redis.call('ZADD', P .. 'om:' .. company, unpack(numbers_and_ids)) end
end

local function end_order(P, company, ids, now)
  if redis.call('ZREM', P .. 'om:' .. company, unpack(ids)) == 0 then return 0 end
  local wakes = 0
  for _, sub in ipairs(redis.call('SMEMBERS', P .. 'os:' .. company)) do wakes = wakes + offer(P, company, sub, now) end
  return wakes
end

-- cost_of returns the average number of deliveries per event of a company. cost is the field of
-- that name in c:<company>.
local function cost_of(P, company, cost)
  return tonumber(cost or math.max(1, redis.call('HLEN', P .. 's:' .. company) - 1))
end

-- batch returns claimed work of one company, as a replica reads it: {company, version of its
-- subscribers, members of bl:<company>, events, deliveries, jobs}. Events are id ('!' before that of a suspect), event or
-- false, and the subscribers that have a delivery already (false: none), in turn. Deliveries
-- are subscriber, id, record or false, and event or false, in turn. Jobs are ids.
local function batch(P, company, events, deliveries, jobs)
  return {company, redis.call('HGET', P .. 's:' .. company, 'v') or '0',
    redis.call('SMEMBERS', P .. 'bl:' .. company), events, deliveries, jobs}
end

-- claim_new claims events for the replica that accepts them. It does not if the replica does not own
-- the partition, or their company has earlier work to claim, or may not claim so many deliveries.
-- Fields of claim:
--   token: that of the replica for the partition, '' for none
--   call: number of the call; a call with the number in the note's field '-', or a lower one,
--     claims nothing, since its answer counts as lost
--   free: deliveries that the company may claim
--   left: deliveries that all companies may claim; claim_new subtracts what it claims
-- events are id and value in turn, number is that of the first one in its company. Returns
-- their batch, or nil: then the caller must append the events to the ready queue.
local function claim_new(P, company, claim, events, number)
  local note = P .. 'n:' .. claim.token
  local found = redis.call('HMGET', P .. 'c:' .. company, 'cost', 'ordered')
  local cost, ordered = cost_of(P, company, found[1]), found[2]
  if claim.free < cost * #events / 2 or redis.call('ZSCORE', P .. 'sched', company)
    or redis.call('GET', P .. 'owner') ~= claim.token
    or claim.call <= tonumber(redis.call('HGET', note, '-') or 0) then return nil end
  local out, notes, unmatched = {}, {}, {}
  for i = 1, #events, 2 do
    out[#out + 1], out[#out + 2], out[#out + 3] = events[i], events[i + 1], false
    notes[i], notes[i + 1] = company .. '/' .. events[i], claim.call
    unmatched[i], unmatched[i + 1] = number + (i - 1) / 2, events[i]
  end
  redis.call('HSET', note, unpack(notes))
  claim.left = claim.left - cost * #events / 2
  if ordered then begin_order(P, company, unmatched) end
  return batch(P, company, out, {}, {})
end

-- configure sets how an endpoint is served: interval in ms and burst ('' for no rate),
-- '1' for ordered, '1' for a pause after a dead delivery. Returns the result of wake.
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
  redis.call('HDEL', state, 'full') -- the in-flight limit may have changed
  return offer(P, company, sub, now)
end

local CHANGES, CHANGES_S = 50, 691200 -- maximum of changes per subscriber, kept for 8 days

-- changed records that an endpoint's subscriber was paused, resumed, disabled or enabled,
-- or is failing or has recovered. The list is for display only: a damaged key must not fail
-- the script.
local function changed(P, e, what, now)
  local key = P .. 'hs:' .. e
  redis.pcall('LPUSH', key, string.format('%.0f %s', now, what))
  redis.pcall('LTRIM', key, 0, CHANGES - 1)
  redis.pcall('EXPIRE', key, CHANGES_S)
end

local PAUSED = '!' -- prefix of the second entry of a paused subscriber in bl:<company>

-- pause stops the service of an endpoint queue and records the reason.
local function pause(P, company, sub, why, now)
  local e = company .. '/' .. sub
  if redis.call('HSETNX', P .. 'es:' .. e, 'paused', now) == 0 then return end
  redis.call('HSET', P .. 'es:' .. e, 'why', why)
  changed(P, e, 'paused', now)
  redis.call('SADD', P .. 'bl:' .. company, sub, PAUSED .. sub)
  redis.call('ZREM', P .. 'dq:' .. company, sub)
  redis.call('ZREM', P .. 'due', 'e:' .. e)
end

-- resume ends the pause of an endpoint queue and offers it. Returns the result of wake.
local function resume(P, company, sub, now)
  local e = company .. '/' .. sub
  if redis.call('HDEL', P .. 'es:' .. e, 'paused', 'why') > 0 then changed(P, e, 'resumed', clock()) end
  redis.call('HDEL', P .. 'es:' .. e, 'full') -- places were freed meanwhile
  redis.call('SREM', P .. 'bl:' .. company, PAUSED .. sub)
  if not managed(endpoint(P, e)) and redis.call('EXISTS', P .. 'eq:' .. e) == 0 then redis.call('SREM', P .. 'bl:' .. company, sub) end
  return offer(P, company, sub, now)
end

-- in_flight reports whether a delivery claimed from its endpoint queue is in flight.
local function in_flight(P, company, sub, id)
  return redis.call('HEXISTS', P .. 'ef:' .. company .. '/' .. sub, id) == 1
end

-- claim_name identifies one claim of a delivery by the owner's token and the version of the
-- record at that time ('' for none). Other claims of the delivery under that token have
-- other versions.
local function claim_name(token, version) return token .. ' ' .. version end

-- freed updates an endpoint after places in its in-flight limit were freed. s is the result
-- of endpoint. Call offer after it.
local function freed(P, e, s, now)
  if not s.full then return end
  if redis.call('HLEN', P .. 'ef:' .. e) <= s.full then
    redis.call('HDEL', P .. 'es:' .. e, 'full')
    s.full = nil
  elseif not s.paused then -- so that freed places are used even if no other one is freed soon
    redis.call('ZADD', P .. 'due', 'LT', now + FREED_MS, 'e:' .. e)
  end
end

-- release frees a delivery's place in its endpoint's in-flight limit. Call offer after it.
local function release(P, company, sub, id)
  local e = company .. '/' .. sub
  redis.call('HDEL', P .. 'ef:' .. e, id)
  freed(P, e, endpoint(P, e), work_time(P))
end

-- version_of returns the version of a delivery's record, '' without a record.
local function version_of(record)
  local bar = record and string.find(record, '|', 1, true)
  return bar and string.sub(record, 2, bar - 1) or ''
end

-- promote_one moves a due endpoint queue or job into the turn of its company.
local function promote_one(P, kind, company, id, now)
  if kind == 'e' then
    redis.call('HDEL', P .. 'es:' .. company .. '/' .. id, 'full')
    return offer(P, company, id, now)
  end
  local jobs = P .. 'jq:' .. company -- a job of notices may be due again while it is in the list
  if not redis.call('LPOS', jobs, id) then redis.call('RPUSH', jobs, id) end
  return join(P, company, now)
end

-- promote moves at most `most` due endpoint queues and jobs into the turns of their companies. It
-- postpones the entries of a company with a damaged key. It postpones a due wake-up, so that only
-- this caller serves the partition. Returns more than 0 when the caller must have the partition
-- served.
local function promote(P, most, now)
  local wakes = 0
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', P .. 'due', '-inf', now, 'LIMIT', 0, most)) do
    local kind, company, id = string.match(member, '^(%a):([^/]*)/(.*)$')
    if not kind then
      redis.call('ZADD', P .. 'due', now + WAKE_MS, member)
      wakes = wakes + 1
    else
      redis.call('ZREM', P .. 'due', member)
      local ok, woken = pcall(promote_one, P, kind, company, id, now)
      if ok then
        wakes = wakes + woken
      else
        redis.call('ZADD', P .. 'due', now + SKIPPED_MS, member)
      end
    end
  end
  return wakes
end
