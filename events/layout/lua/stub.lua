-- Stubs of compacted events allow reading a company's events by number. Each block has one
-- text of stubs. A stub consists of a byte with its number within the block; a byte with
-- the length of its text; the text: accepted ms minus the beginning of the block, timestamp
-- in ms minus accepted ms, and type, '' for the type of the stub before; a byte with the
-- length of its id, or 0 for 16 bytes of a UUID; and the id.

-- unix_ms converts the time format of bodies to unix ms.
local function unix_ms(year, month, day, hour, minute, second, ms)
  local y, m = tonumber(year), tonumber(month)
  if m <= 2 then y, m = y - 1, m + 12 end
  local days = 365 * y + math.floor(y / 4) - math.floor(y / 100) + math.floor(y / 400) + math.floor((153 * (m - 3) + 2) / 5) + day - 719469
  return (((days * 24 + hour) * 60 + minute) * 60 + second) * 1000 + ms
end

local HEX4 = string.rep('[0-9a-f]', 4)
local UUID = '^' .. HEX4 .. HEX4 .. '%-' .. HEX4 .. '%-' .. HEX4 .. '%-' .. HEX4 .. '%-' .. HEX4 .. HEX4 .. HEX4 .. '$'

local function packed_id(id)
  if not string.find(id, UUID) then return string.char(#id) .. id end
  local hex = string.gsub(id, '%-', '')
  return '\0' .. string.gsub(hex, '..', function(byte) return string.char(tonumber(byte, 16)) end)
end

-- stub_of returns the stub of an event from its stored value; nil when that is damaged.
local function stub_of(id, value)
  local accepted, number = tonumber(string.sub(value, 2, 14)), tonumber(string.sub(value, 23, HEADER), 16)
  local kind, y, mo, d, h, mi, s, ms = string.match(value,
    '^"event":"([%w_.:-]+)","timestamp":"(%d+)%-(%d+)%-(%d+)T(%d+):(%d+):(%d+)%.(%d+)Z"', HEADER + 1)
  if not accepted or not number or not kind then return nil end
  return {id = id, number = number, accepted = accepted, kind = kind, timestamp = unix_ms(y, mo, d, h, mi, s, ms)}
end

-- keep_stubs appends stubs of one company's events to their blocks. It skips blocks that
-- were removed.
local function keep_stubs(P, company, stubs)
  local numbers, blocks = P .. 'en:' .. company, {}
  for _, s in ipairs(stubs) do
    local b = block_of(s.number)
    local block = blocks[b]
    if not block then
      block = {at = tonumber(redis.call('HGET', numbers, b) or nil)}
      blocks[b] = block
    end
    if block.at then
      local text = string.format('%.0f %.0f %s', s.accepted - math.floor(block.at), s.timestamp - s.accepted, s.kind == block.kind and '' or s.kind)
      block.kind = s.kind
      table.insert(block, string.char(s.number % BLOCK) .. string.char(#text) .. text .. packed_id(s.id))
    end
  end
  for b, block in pairs(blocks) do
    if #block > 0 then redis.call('HSET', numbers, b .. 'c', (redis.call('HGET', numbers, b .. 'c') or '') .. table.concat(block)) end
  end
end
