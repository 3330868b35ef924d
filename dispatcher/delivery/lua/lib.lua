-- Of an event's deliveries the field '#' counts the live ones, '!' says that one
-- died, and '-' that a disabled subscriber was to have one.
local HELD = '-'

local ended = {} -- the events of this call that may be compacted, by company

-- settle moves an event to the state that its deliveries are in, after some of
-- them were written. What is pending has no expiry. matched: '0', or its matching is
-- complete, so the replica's note of it ends: '1', or 'h' when a disabled
-- subscriber was to have it. opened: live deliveries more than before. Returns by
-- how much the pending events of the company grew: -1, 0 or 1. Call remember_ended
-- when all are settled.
local function settle(P, replica, company, id, matched, opened, dead, now, keep, keep_dead, keep_event)
  local deliveries, event = P .. 'd:' .. company .. '/' .. id, P .. 'e:' .. company .. ':' .. id
  if matched ~= '0' then redis.call('HDEL', P .. 'n:' .. replica, company .. '/' .. id) end
  if opened ~= 0 then redis.call('HINCRBY', deliveries, '#', opened) end
  if dead then redis.call('HSET', deliveries, '!', now) end
  local head = redis.call('GETRANGE', event, 0, 13)
  local state, accepted = string.sub(head, 1, 1), tonumber(string.sub(head, 2))
  if state == COMPACTED then redis.call('UNLINK', deliveries) end -- it came too late
  if not accepted or state == COMPACTED or state == READY and matched == '0' then return 0 end
  if matched == 'h' then redis.call('HSET', deliveries, HELD, 1) end
  local marks = redis.call('HMGET', deliveries, '#', '!', HELD)
  local is = SETTLED
  if tonumber(marks[1] or 0) > 0 then is = MATCHED end
  if is == SETTLED and (state ~= SETTLED or dead) then
    local ms = math.max(accepted + keep_event - now, 1000)
    if marks[2] then ms, keep = math.max(ms, keep_dead), math.max(keep, keep_dead) end
    redis.call('PEXPIRE', event, ms)
    redis.call('PEXPIRE', deliveries, keep)
  end
  if is == state then return 0 end
  redis.call('SETRANGE', event, 0, is)
  if is == SETTLED then
    if not (marks[2] or marks[3]) then
      local of = ended[P .. company] or {P = P, company = company}
      of[#of + 1] = string.format('%08x', math.floor(now / 1000)) .. id
      ended[P .. company] = of
    end
    return -1
  end
  if state ~= SETTLED then return 0 end
  redis.call('PERSIST', event)
  redis.call('PERSIST', deliveries)
  return 1
end

-- remember_ended appends the settled events to those that compact.lua looks at.
local function remember_ended(now)
  for _, of in pairs(ended) do
    local length = redis.call('RPUSH', of.P .. 'done:' .. of.company, unpack(of))
    if length == #of then redis.call('ZADD', of.P .. 'compact', now, of.company) end
  end
end

local function count_pending(P, company, change)
  if change == 0 then return end
  redis.call('HINCRBY', P .. 'c:' .. company, 'pending', change)
  redis.call('INCRBY', P .. 'pending', change)
end
