-- Drops an entry of the quarantine. An event is replaced by its compacted form, so that its
-- id stays known, and is not pending any more. An unreadable record of a delivery is
-- deleted, and the event is settled when that was its last live delivery. A readable
-- delivery was cancelled before this call. An unreadable event is compacted after its last
-- live delivery.
-- KEYS: 1 a partition's due set, 2 a key that never exists
-- ARGV: 1 now ms, 2 ms that a delivery is kept, 3 ms that a dead delivery is kept, 4 ms
--   that an event is kept after it was accepted, 5 '', 6 key prefix, 7 company, 8 event id,
--   9 subscriber, '' for the event itself, 10 '1' when the delivery's record is unreadable,
--   11 '1' when the event is unreadable
-- Returns 1, or 0 when the entry is not in the quarantine.
local now, keep, keep_dead, keep_event = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local P, company, id, sub = ARGV[6], ARGV[7], ARGV[8], ARGV[9]
check({P})
local record_damaged, event_damaged = ARGV[10] == '1', ARGV[11] == '1'
local quarantine, member = P .. 'quarantine', company .. '/' .. id
if sub ~= '' then member = reference(company, id, sub) end
if not redis.call('ZSCORE', quarantine, member) then return 0 end

local deliveries, event = P .. 'd:' .. company .. '/' .. id, P .. 'e:' .. company .. ':' .. id
local kept = redis.pcall('GET', event)
if type(kept) ~= 'string' then kept = '' end
local state, head = string.match(kept, '^([RMSC])(' .. string.rep('%d', 13) .. string.rep('%x', 18) .. ')')

-- bury replaces the event by its compacted form: header and digest.
local function bury()
  local ms = keep_event
  if head then give_back(P, company, hour_of(string.sub(head, 1, 13)), #kept - HEADER + OVERHEAD - COMPACTED_BYTES) end
  if head then ms = math.min(ms, math.max(tonumber(string.sub(head, 1, 13)) + keep_event - now, 1000)) end
  redis.call('DEL', event)
  redis.call('SET', event, COMPACTED .. (head or string.format('%013d', now) .. string.rep('0', 18)) ..
    digest(content(string.sub(kept, HEADER + 1))), 'PX', ms)
end

if sub == '' then
  if not state or state == READY then
    bury()
    count_pending(P, company, -1)
  end
else
  if redis.call('TYPE', deliveries).ok ~= 'hash' then redis.call('DEL', deliveries) end
  local opened = 0
  if record_damaged then
    redis.call('HDEL', deliveries, sub)
    redis.call('ZREM', P .. 'da:' .. company .. '/' .. sub, id)
    redis.call('ZREM', P .. 'dl:' .. company .. '/' .. sub, id)
    redis.call('ZREM', P .. 'cl:' .. company, id .. '/' .. sub)
    if tonumber(redis.call('HGET', deliveries, '#') or 0) > 0 then opened = -1 end
  end
  if state then
    local e = {P = P, company = company, id = id, matched = '', opened = opened, records = {},
      marks = redis.call('HMGET', deliveries, '#', '!', HELD)}
    count_pending(P, company, settle(e, '', now, keep, keep_dead, keep_event))
    if event_damaged and redis.call('GETRANGE', event, 0, 0) == SETTLED then bury() end
  else
    if opened ~= 0 then redis.call('HINCRBY', deliveries, '#', opened) end
    if tonumber(redis.call('HGET', deliveries, '#') or 0) <= 0 then
      bury()
      count_pending(P, company, -1)
    end
  end
end
end_settling(now)
redis.call('ZREM', quarantine, member)
return 1
