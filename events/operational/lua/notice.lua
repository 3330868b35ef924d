-- The script that makes a change also accepts the operational event ("notice") about it. A
-- notice is one text from Store.Encode, with spaces between its parts: retention ms, '1'
-- when the operations company must get a copy, type, id, the event id that it is about, and the
-- body without id and company. '' means no notice.
local NOTICES = 60    -- per type, subscriber and minute; a summary counts the others
local NOTICES_ALL = 300 -- per type, company and minute; summaries are not counted
local NOTICE_MS = 60000
local OUTBOX = 256    -- maximum of a company's notices for the operations company
local NOTICE_TYPES = {'SUBSCRIBER_DISABLED', 'SUBSCRIBER_FAILING', 'SUBSCRIBER_RECOVERED', 'DELIVERY_DEAD'}
local FORWARD = '00000000-0000-0000-0000-000000000001'   -- the job that empties the outbox
local SUMMARISE = '00000000-0000-0000-0000-000000000002' -- the job that writes summaries

-- wanted reports whether a subscriber of the company lists a type. It includes disabled
-- subscribers, because they may recover missed events. It reads the subscribers again only
-- after their version has changed.
local function wanted(P, company, kind)
  local subs, state = P .. 's:' .. company, P .. 'c:' .. company
  local version = redis.call('HGET', subs, 'v')
  if not version then return false end
  local known = redis.call('HGET', state, 'notices')
  if not known or string.match(known, '^%d+') ~= version then
    known = version .. ' '
    local all = table.concat(redis.call('HVALS', subs))
    for _, name in ipairs(NOTICE_TYPES) do
      if string.find(all, '"' .. name .. '"', 1, true) then known = known .. name .. ' ' end
    end
    redis.call('HSET', state, 'notices', known)
  end
  return string.find(known, ' ' .. kind .. ' ', 1, true) ~= nil
end

-- schedule_job makes a job of notices due at the time at, unless the job is due earlier.
local function schedule_job(P, company, job, at)
  redis.call('ZADD', P .. 'due', 'LT', at, 'j:' .. company .. '/' .. job)
  tell(P, 'j:' .. company .. '/' .. job)
end

-- suppress counts n notices that are not written. A summary is due NOTICE_MS after the first.
-- key consists of 'c' (for the company and the operations company) or 'o' (only for the
-- operations company), the subscriber and the type.
local function suppress(P, company, key, n, first, last)
  local all = P .. 'ns:' .. company
  local due, count, from = string.match(redis.call('HGET', all, key) or '', '^(%d+) (%d+) (%S+) %S+$')
  if due then
    n, first = n + count, from
  else -- there are none, or their count is damaged
    due = clock() + NOTICE_MS
    schedule_job(P, company, SUMMARISE, work_time(P) + NOTICE_MS)
  end
  redis.call('HSET', all, key, string.format('%.0f %.0f %s %s', due, n, first, last))
end

local function read_notice(text)
  local n = {n = 1}
  local ops
  n.retention, ops, n.type, n.id, n.first, n.body = string.match(text, '^(%d+) (%d) (%S+) (%S+) (%S+) (.*)$')
  n.last, n.operations = n.first, ops == '1'
  return n
end

-- write_notice accepts a notice in its company if n.here is set, and adds a copy to the outbox for
-- the operations company if n.operations is set. Returns more than 0 when the owner is to be woken.
local function write_notice(P, company, sub, n, now)
  local told = 0
  if n.here and redis.call('EXISTS', P .. 'e:' .. company .. ':' .. n.id) == 0 then
    local counts = redis.call('HMGET', P .. 'c:' .. company, 'pending', 'seq', 'at')
    local _
    _, told = append(P, company, {{id = n.id, body = n.body, nonce = '00000000'}},
      tonumber(counts[1] or 0), tonumber(counts[2] or 0), tonumber(counts[3] or 0), now, tonumber(n.retention))
  end
  if n.operations then
    local outbox = P .. 'outbox:' .. company
    if redis.call('ZCARD', outbox) >= OUTBOX then
      suppress(P, company, 'o/' .. sub .. '/' .. n.type, n.n, n.first, n.last)
    else
      redis.call('ZADD', outbox, now, n.id .. ' ' .. n.body)
      schedule_job(P, company, FORWARD, work_time(P))
    end
  end
  return told
end

-- within counts a notice about a company or a subscriber. It reports whether the type has at most
-- `most` notices about it in this minute.
local function within(P, name, kind, most)
  local counter = P .. 'nc:' .. name .. '/' .. kind
  local count = redis.call('INCR', counter)
  if count == 1 then redis.call('PEXPIRE', counter, NOTICE_MS) end
  return count <= most
end

local function limited(P, company, sub, text, now)
  local n = read_notice(text)
  n.here = wanted(P, company, n.type)
  if not n.here and not n.operations then return 0 end
  if within(P, company .. '/' .. sub, n.type, NOTICES) and within(P, company, n.type, NOTICES_ALL) then
    return write_notice(P, company, sub, n, now)
  end
  suppress(P, company, (n.here and 'c/' or 'o/') .. sub .. '/' .. n.type, 1, n.first, n.last)
  return 0
end

-- notice accepts an operational event about a subscriber, if its company or the operations company
-- wants the type. Beyond NOTICES or NOTICES_ALL a minute it only counts the event for a summary. A
-- damaged key of the company loses the notice, but not the change itself. Returns more than 0 when the owner is to be
-- woken.
local function notice(P, company, sub, text, now)
  if text == '' then return 0 end
  local ok, told = pcall(limited, P, company, sub, text, now)
  return ok and told or 0
end
