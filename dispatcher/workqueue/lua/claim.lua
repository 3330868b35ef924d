-- Claims work of one partition for its owner and notes the work under the owner's token, in
-- one step. Each company gets at most one quantum per call, the lowest virtual start time
-- first (start-time fair queueing, Goyal et al. 1996).
-- KEYS: 1 the partition's due set, 2 a key that never exists
-- ARGV: 1 key prefix, 2 token of the owner, 3 number of the call, 4 maximum of deliveries, 5 maximum
--   of bytes of events, 6 maximum of deliveries per company while other companies have
--   work, 7 in-flight limit of an endpoint queue, 8 unreachable attempts in a row that open
--   a breaker, 9 share of each company that is not listed, 10 in-flight limit of a company's
--   endpoint queues of one host; then company and share in turn
-- Returns {1 when a wake-up must be enqueued else 0, companies skipped because they hold
--   their share, ms until an endpoint queue that waits for its rate may be served or -1,
--   {company with a damaged key, error, ...}, batches...}; {-1} when the partition has another owner; or
--   {-2} when the notes have this number of a call or a higher one: then this call may have run
--   before, and its answer was lost. Batches are results of batch.
local P, token = ARGV[1], ARGV[2]
check({P})
if redis.call('GET', P .. 'owner') ~= token then return {-1} end

local note, call = P .. 'n:' .. token, tonumber(ARGV[3])
if call <= tonumber(redis.call('HGET', note, '') or 0) then return {-2} end

local now = work_time(P)
local budget, bytes, quantum = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local limit, trips, share_of_others, host_limit = tonumber(ARGV[7]), tonumber(ARGV[8]), tonumber(ARGV[9]), tonumber(ARGV[10])
local jobs = 4 -- that may still be claimed
local shares = {}
for i = 11, #ARGV, 2 do shares[ARGV[i]] = tonumber(ARGV[i + 1]) end

local JOB_TURN = 8      -- in every so many turns of a company, a job precedes new work
local PAGE = 200        -- companies that are read at a time
local ENDPOINTS = 32    -- endpoint queues that one turn of a company serves
local EVENTS = 16       -- events that are read at a time
local PROMOTE = 16      -- due entries that one claim moves
local HOST_MS = 30000   -- ms after its service in which an endpoint shares its host's limit

-- note_down notes claimed work, and with the first of it the number of this call.
local noted = false
local function note_down(notes)
  if not noted then notes[#notes + 1], notes[#notes + 2], noted = '', call, true end
  redis.call('HSET', note, unpack(notes))
end

promote(P, PROMOTE, now)
redis.call('ZREM', P .. 'due', '', SKIPPED)

-- read returns DAMAGED for a value of the wrong type, instead of an error. The caller
-- cannot decode DAMAGED either, and does not mistake it for a missing value.
local DAMAGED = '?'
local function read(command, ...)
  local value = redis.pcall(command, ...)
  if type(value) == 'table' then return DAMAGED end
  return value
end

-- each_event calls visit with each id and event of a company while the budget of bytes lasts, and
-- returns the number of calls. MGET does not distinguish a value of the wrong type from a missing
-- one, so read is called for both.
local function each_event(company, ids, visit)
  local events = {}
  for i, id in ipairs(ids) do
    if bytes <= 0 then return i - 1 end
    local at = (i - 1) % EVENTS
    if at == 0 then
      local keys = {}
      for j = i, math.min(i + EVENTS - 1, #ids) do
        keys[#keys + 1] = P .. 'e:' .. company .. ':' .. string.gsub(ids[j], '^!', '')
      end
      events = redis.call('MGET', unpack(keys))
      for k, key in ipairs(keys) do events[k] = events[k] or read('GET', key) end
    end
    local event = events[at + 1]
    bytes = bytes - (event and #event or 0)
    visit(id, event)
  end
  return #ids
end

-- claim_events claims events of a company's ready queue and appends them to out. Returns their
-- approximate number of deliveries.
local function claim_events(company, want, cost, ordered, out)
  local queue = P .. 'q:' .. company
  local ids = redis.call('LPOP', queue, math.max(1, math.floor(want / cost))) or {}
  local used, notes, unmatched = 0, {}, {}
  local visited = each_event(company, ids, function(id, event)
    if matched(event) then return end
    local known, name = false, id
    if string.sub(id, 1, 1) == '!' then -- requeued: some deliveries may be recorded
      id = string.sub(id, 2)
      known = redis.pcall('HKEYS', P .. 'd:' .. company .. '/' .. id)
      if known.err then known = false end
      if redis.pcall('HEXISTS', P .. 'suspects', company .. '/' .. id) ~= 1 then name = id end
    end
    notes[#notes + 1], notes[#notes + 2] = company .. '/' .. id, call
    if ordered and event then
      unmatched[#unmatched + 1], unmatched[#unmatched + 2] = tonumber(string.sub(event, 23, 32), 16) or 0, id
    end
    used = used + cost
    out[#out + 1], out[#out + 2], out[#out + 3] = name, event, known
  end)
  if visited < #ids then
    local rest = {}
    for i = #ids, visited + 1, -1 do rest[#rest + 1] = ids[i] end
    redis.call('LPUSH', queue, unpack(rest))
  end
  if #notes > 0 then note_down(notes) end
  begin_order(P, company, unmatched)
  return used
end

-- host_share returns how many deliveries of an endpoint may be in flight when its company
-- has other endpoints on the same host. The endpoints of the host that were served in the
-- last HOST_MS share its limit evenly, so none waits until the backlog of another is empty.
local function host_share(company, sub)
  if redis.call('HLEN', P .. 's:' .. company) * limit <= host_limit then return limit end
  local subscriber = read('HGET', P .. 's:' .. company, sub)
  local host = subscriber and string.match(subscriber, '"callbackUrl":"(https?://[^/"]*)')
  if not host then return limit end
  local active = P .. 'ha:' .. company .. '/' .. host
  redis.call('ZADD', active, now, sub)
  redis.call('ZREMRANGEBYSCORE', active, '-inf', now - HOST_MS)
  redis.call('PEXPIRE', active, HOST_MS)
  return math.min(limit, math.max(1, math.floor(host_limit / redis.call('ZCARD', active))))
end

local next_service -- ms until the first endpoint queue that waits for its rate is due

-- due_now lists the first deliveries of an endpoint queue that are due, at most `most`, and when
-- each of them and the one after them is due; for a mixed queue, only the first of these times.
local function due_now(queue, s, most)
  local ids, times = {}, {}
  if mixed(s) then
    ids, times[1] = redis.call('ZRANGEBYSCORE', queue, '-inf', now, 'LIMIT', 0, most), first_due(queue, s)
    if #ids < most then
      for _, id in ipairs(redis.call('ZRANGEBYSCORE', queue, IN_ORDER, '+inf', 'LIMIT', 0, most - #ids)) do ids[#ids + 1] = id end
    end
    return ids, times
  end
  local first = redis.call('ZRANGE', queue, 0, most, 'WITHSCORES')
  for i = 1, #first / 2 do
    times[i] = due_at(first[2 * i], s)
    if i <= most and times[i] <= now then ids[i] = first[2 * i - 1] end
  end
  return ids, times
end

-- too_early reports whether an event before the first one of an ordered queue is not
-- matched yet.
local function too_early(company, queue)
  local unmatched = redis.call('ZRANGE', P .. 'om:' .. company, 0, 0, 'WITHSCORES')
  local first = redis.call('ZRANGE', queue, 0, 0, 'WITHSCORES')
  return unmatched[1] and first[1] and tonumber(first[2]) - IN_ORDER > tonumber(unmatched[2])
end

-- claim_endpoint claims due deliveries of one endpoint queue, appends them to out, and
-- schedules the next service of the queue. Returns the number of claimed deliveries.
local function claim_endpoint(company, sub, want, out)
  local e = company .. '/' .. sub
  local queue, turn, state = P .. 'eq:' .. e, P .. 'dq:' .. company, P .. 'es:' .. e
  local s = endpoint(P, e)
  if s.paused then redis.call('ZREM', turn, sub) return 0 end
  local most = limit
  if s.ordered or (s.fails or 0) >= trips then most = 1 end -- open breaker: one probe
  if most > 1 then most = host_share(company, sub) end
  local free = most - redis.call('HLEN', P .. 'ef:' .. e)
  local by_rate, at_rate = rate_allows(s, now)
  local allowed = math.min(want, free, by_rate)
  local ids, times = due_now(queue, s, math.max(1, allowed))
  local early = s.ordered and too_early(company, queue)
  if early or allowed < 1 or (s['until'] or 0) > now then ids = {} end

  local taken, notes, claims = {}, {}, {}
  local used = each_event(company, ids, function(id, event)
    local record = read('HGET', P .. 'd:' .. company .. '/' .. id, sub)
    taken[#taken + 1] = id
    notes[#notes + 1], notes[#notes + 2] = reference(company, id, sub), call
    claims[#claims + 1], claims[#claims + 2] = id, claim_name(token, version_of(record))
    out[#out + 1], out[#out + 2], out[#out + 3], out[#out + 4] = sub, id, record, event
  end)
  if used > 0 then
    redis.call('ZREM', queue, unpack(taken))
    note_down(notes)
    redis.call('HSET', P .. 'ef:' .. e, unpack(claims))
    redis.call('EXPIRE', P .. 'ef:' .. e, 3600)
  end
  if s.interval and used > 0 then
    s.tat = math.max(s.tat or 0, now) + used * s.interval
    redis.call('HSET', state, 'tat', string.format('%.3f', s.tat))
    by_rate, at_rate = rate_allows(s, now)
  end

  local first = times[used + 1]
  if mixed(s) then first = first_due(queue, s) end
  if (not first or first > now) and not managed(s) then redis.call('SREM', P .. 'bl:' .. company, sub) end
  local at = nil -- when the queue is to be served again; none: once it is offered
  if not first then
    if s.numbered and not s.ordered then redis.call('HDEL', state, 'numbered') end
  elseif used >= free then
    -- The queue is offered when release has freed several places: service after each freed place
    -- would cost one claim per delivery.
    redis.call('HSET', state, 'full', most - math.max(1, math.floor(most / 16)))
  elseif math.max(first, s['until'] or 0) > now then
    at = math.max(first, s['until'] or 0)
  elseif early then
    at = now + SKIPPED_MS -- end_order offers the queue earlier, when the event is matched
  elseif by_rate < 1 then
    next_service = math.min(next_service or math.huge, at_rate - now)
    at = at_rate
  else
    redis.call('ZADD', turn, now, sub)
    return used
  end
  redis.call('ZREM', turn, sub)
  if at then redis.call('ZADD', P .. 'due', at, 'e:' .. e) end
  return used
end

-- claim_endpoints claims deliveries of a company's endpoint queues and appends them to out. Returns
-- their number.
local function claim_endpoints(company, want, out)
  local used = 0
  for _, sub in ipairs(redis.call('ZRANGE', P .. 'dq:' .. company, 0, ENDPOINTS - 1)) do
    if used >= want or bytes <= 0 then break end
    used = used + claim_endpoint(company, sub, want - used, out)
  end
  return used
end

-- claim_job claims a company's next job and appends it to out.
local function claim_job(company, out)
  if jobs <= 0 then return end
  local id = redis.call('LPOP', P .. 'jq:' .. company)
  if not id then return end
  note_down({'j:' .. company .. '/' .. id, call})
  redis.call('HSET', P .. 'c:' .. company, 'job', id)
  jobs = jobs - 1
  out[#out + 1] = id
end

-- has_work reports whether a company has more work to claim. One job of a company at a time is
-- under way; jobs after it are not claimed yet.
local function has_work(company, job)
  local keys = {P .. 'q:' .. company, P .. 'dq:' .. company}
  if not job then keys[3] = P .. 'jq:' .. company end
  return redis.call('EXISTS', unpack(keys)) > 0
end

local out, skipped, damaged = {0, {}, -1, {}}, {}, {}
local left = false -- a company that may claim has more work
local alone -- only one company has work
local v = tonumber(redis.call('GET', P .. 'v') or 0)

-- serve runs one turn of a company: it claims work, charges the company for it, and fills work,
-- the company's batch. It fails when a key of the company is damaged. work then has what the
-- turn claimed before.
local function serve(company, start, want, work)
  for i, part in ipairs(batch(P, company, {}, {}, {})) do work[i] = part end
  local events, deliveries, claimed = work[4], work[5], work[6]
  local state = P .. 'c:' .. company
  local found = redis.call('HMGET', state, 'turn', 'job', 'cost', 'ordered')
  local number, job, cost, ordered = (found[1] or 0) + 1, found[2], cost_of(P, company, found[3]), found[4]
  local used, more = 0, 0
  if number % JOB_TURN == 0 and not job then claim_job(company, claimed) end
  if number % 2 == 0 then
    used = claim_endpoints(company, want, deliveries)
    if used < want then more = claim_events(company, want - used, cost, ordered, events) end
  else
    used = claim_events(company, want, cost, ordered, events)
    if used < want then more = claim_endpoints(company, math.floor(want - used), deliveries) end
  end
  used = used + more
  if used == 0 and #claimed == 0 and not job then claim_job(company, claimed) end
  if #deliveries > 0 then work[3] = redis.call('SMEMBERS', P .. 'bl:' .. company) end -- queues may be empty now
  v = math.max(v, start)
  if has_work(company, job or claimed[1]) then
    redis.call('ZADD', P .. 'sched', start + math.max(used, 1), company)
    redis.call('HSET', state, 'turn', number)
    left = true
  else
    redis.call('ZREM', P .. 'sched', company)
    redis.call('HSET', state, 'turn', number, 'tag', start + used)
  end
  budget = budget - used
end

local unmoved = 0 -- damaged companies that keep their virtual start times
local starts = {} -- virtual start times of the companies that were skipped
repeat -- read the next page only if no company of this page was served
  local first = #skipped + unmoved
  local turn = redis.call('ZRANGE', P .. 'sched', first, first + PAGE - 1, 'WITHSCORES')
  if first == 0 then alone = #turn == 2 end
  for i = 1, #turn, 2 do
    if budget < 1 or bytes <= 0 then left = true break end
    local company = turn[i]
    local want = math.floor(math.min(shares[company] or share_of_others, budget))
    if not alone then want = math.min(want, quantum) end
    if want > 0 then
      local work = {}
      local ok, why = pcall(serve, company, tonumber(turn[i + 1]), want, work)
      if not ok then
        damaged[#damaged + 1], damaged[#damaged + 2] = company, type(why) == 'table' and why.err or tostring(why)
        local used = work[6] and #work[4] / 3 + #work[5] / 4 or 0
        if used > 0 then -- the turn failed after it had claimed: it is charged for that
          budget = budget - used
          redis.call('ZADD', P .. 'sched', turn[i + 1] + used, company)
        else
          unmoved = unmoved + 1
        end
      end
      if work[6] and #work[4] + #work[5] + #work[6] > 0 then out[#out + 1] = work end
    else
      skipped[#skipped + 1] = company
      starts[#skipped] = tonumber(turn[i + 1])
    end
  end
  if #turn < 2 * PAGE then break end
  local seen = #skipped + unmoved
  left = left or seen < first + PAGE and redis.call('ZCARD', P .. 'sched') > seen
until seen < first + PAGE
for i, company in ipairs(skipped) do -- a company that is skipped accumulates no turns
  if starts[i] < v then redis.call('ZADD', P .. 'sched', v, company) end
end
redis.call('SET', P .. 'v', string.format('%.17g', v))
if left then
  out[1] = wake(P, now)
elseif #skipped + #damaged > 0 then
  -- The replica claims again when it has free places. If it does not, or if a key is damaged,
  -- the owner serves.
  redis.call('ZADD', P .. 'due', now + SKIPPED_MS, SKIPPED)
end
out[2], out[3], out[4] = skipped, next_service or -1, damaged
return out
