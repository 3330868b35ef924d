-- Requeues work that is noted under a token, so that the partition's owner may claim it: all work of
-- the token (a page at a time), the work of one claim, or the notes in ARGV.
-- KEYS: 1 the partition's due set, 2 a key that never exists
-- ARGV: 1 key prefix, 2 token, 3 number of the claim to requeue, '' for all claims; if Redis receives
--   that claim only later, it claims nothing, 4 longest time that an attempt may still run, in ms, 5 '1' when
--   the replica that made the notes is lost: matching their events may have ended it, so they are suspects; then
--   the notes to requeue, of work that was not begun. With neither a claim nor notes, the script requeues
--   all notes. The token must then be that of a former owner.
-- A damaged key of a company prevents the requeue. The script then quarantines the noted event or
-- delivery, and postpones the noted job.
-- Returns {number of notes that were removed, notes left, 1 when a wake-up must be enqueued else 0,
--   number of quarantined events and deliveries}.
local P, token, call = ARGV[1], ARGV[2], ARGV[3]
check({P})
local MOST = 500 -- notes of one call
local now = work_time(P)
local note = P .. 'n:' .. token
local refs, wakes = {}, 0
-- An attempt of an ordered delivery may be under way. The delivery is not due before that
-- attempt has ended.
local begun, lost = tonumber(ARGV[4]), ARGV[5] == '1'
local SUSPECT_S = 86400

if #ARGV > 5 then
  begun = 0
  for i = 6, #ARGV do refs[#refs + 1] = ARGV[i] end
else
  local numbers = redis.call('HMGET', note, '', '-') -- numbers of calls, which are no notes
  redis.call('HDEL', note, '', '-')
  local cursor = '0'
  repeat
    local page = redis.call('HSCAN', note, cursor, 'COUNT', MOST)
    cursor = page[1]
    for i = 1, #page[2], 2 do
      if call == '' or page[2][i + 1] == call then refs[#refs + 1] = page[2][i] end
    end
  until cursor == '0' or #refs >= MOST
  if call ~= '' and redis.call('GET', P .. 'owner') == token then
    redis.call('HSET', note, '', math.max(numbers[1] or 0, call), '-', math.max(numbers[2] or 0, call))
  end
end

local n, quarantined, joins, back = 0, 0, {}, {}

-- requeue requeues a noted event or delivery. It fails when a key of the company is damaged.
local function requeue(company, id, sub)
  back[company] = true
  if sub == '' then
    local event = redis.pcall('GETRANGE', P .. 'e:' .. company .. ':' .. id, 0, EVENT_HEADER - 1)
    if not matched(event) then
      redis.call('LPUSH', P .. 'q:' .. company, '!' .. id)
      joins[company] = true
      if lost then redis.pcall('HSETNX', P .. 'suspects', company .. '/' .. id, '0 ') end
    end
  else
    release(P, company, sub, id)
    wakes = wakes + put_back(P, company, sub, id, now, begun)
  end
end

local function requeue_job(company, job)
  redis.call('HDEL', P .. 'c:' .. company, 'job')
  wakes = wakes + promote_one(P, 'j', company, job, now)
end

-- quarantine quarantines a noted event or delivery that cannot be requeued.
local function quarantine(ref, company, id, sub)
  redis.call('ZADD', P .. 'quarantine', clock(), ref)
  quarantined = quarantined + 1
  if sub == '' then -- ordered deliveries of later events do not wait for this event
    local ok, woken = pcall(end_order, P, company, {id}, now)
    if ok then wakes = wakes + woken end
  else -- the requeue may have failed after the delivery was in its queue
    redis.pcall('ZREM', P .. 'eq:' .. company .. '/' .. sub, id)
  end
end

for i = 1, math.min(#refs, MOST) do
  local ref = refs[i]
  if redis.call('HDEL', note, ref) == 1 then
    n = n + 1
    local company, job = string.match(ref, '^j:([^/]*)/(.*)$')
    if not job then
      local id, sub
      company, id, sub = string.match(ref, '^([^/]*)/([^/]*)/?(.*)$')
      if not pcall(requeue, company, id, sub) then quarantine(ref, company, id, sub) end
    elseif not pcall(requeue_job, company, job) then
      redis.call('ZADD', P .. 'due', now + SKIPPED_MS, ref)
    end
  end
end
for company in pairs(joins) do wakes = wakes + join(P, company, now) end
for company in pairs(back) do went_back(P, company, now) end
if lost then redis.call('EXPIRE', P .. 'suspects', SUSPECT_S) end
local left = redis.call('HLEN', note)
if left == 0 then redis.call('SREM', P .. 'handover', token) end
return {n, left, wakes > 0 and 1 or 0, quarantined}
