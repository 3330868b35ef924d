-- compact_event replaces an event by its header, a digest of its body, and a stub. An unreadable
-- header is replaced by one with the present time. ms is how long the event is kept after it was
-- accepted. records are those of its deliveries, which the caller removes. Call end_compacting after the
-- last event.
local compacted = {} -- stubs, and bytes that are not kept any more by hour, by company

local HEAD = '^%u(' .. string.rep('%d', 13) .. string.rep('%x', 18) .. ')'

local function compact_event(P, company, id, value, now, ms, records)
  local c = compacted[P .. company] or {P = P, company = company, stubs = {}, freed = {}}
  compacted[P .. company] = c
  local head, body = string.match(value, HEAD), string.sub(split(value), HEADER + 1)
  local accepted = head and string.sub(head, 1, 13) or string.format('%013.0f', now)
  if head then
    local hour = hour_of(accepted)
    local size = #body + OVERHEAD - COMPACTED_BYTES + math.max(#records - 1, 0) * DELIVERY_BYTES
    for _, record in ipairs(records) do size = size + longer(record) end
    c.freed[hour] = (c.freed[hour] or 0) + size
  end
  local event = P .. 'e:' .. company .. ':' .. id
  redis.call('DEL', event) -- may have another type
  redis.call('SET', event, COMPACTED .. (head or accepted .. string.rep('0', 18)) .. digest(content(body)), 'PX', math.max(accepted + ms - now, 1000))
  gather(P .. 'ei:' .. company, id, false)
  local indexed = redis.pcall('ZSCORE', P .. 'ei:' .. company, id) -- else restored, and there is a stub
  c.stubs[#c.stubs + 1] = head and type(indexed) == 'string' and stub_of(id, value) or nil
end

local function end_compacting(now)
  flush(now)
  for _, c in pairs(compacted) do
    keep_stubs(c.P, c.company, c.stubs)
    for hour, size in pairs(c.freed) do add_bytes(c.P, c.company, hour, -size) end
  end
end
