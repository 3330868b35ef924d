-- The value of an event consists of its state, 13 digits of accepted ms, 8 hex digits of
-- commit nonce, 10 hex digits of its number in the company, and the body without id and
-- company, then the trace if there is one. A settled event may have the records of its deliveries
-- after that, the length of the records in 8 hex digits, and a P. A compacted event has a digest of the
-- body in place of body and trace.
local HEADER = 32

-- split returns the value of an event without the records of its deliveries, and the records; nil when it
-- has none.
local function split(value)
  local n = string.sub(value, 1, 1) == 'S' and string.sub(value, -1) == 'P' and tonumber(string.sub(value, -9, -2), 16)
  if not n or n + 9 + HEADER > #value then return value, nil end
  return string.sub(value, 1, -n - 10), string.sub(value, -n - 9, -10)
end

-- content returns the body without the trace. A trace is 25 bytes and a T after the body. A
-- body ends with }.
local function content(kept)
  if string.sub(kept, -1) == 'T' then return string.sub(kept, 1, -27) end
  return kept
end

-- digest returns the first 96 bits of a body's SHA-1 in 12 bytes: so Redis keeps header and
-- digest in one allocation (up to 44 bytes).
local function digest(body)
  local hex = string.sub(redis.sha1hex(body), 1, 24)
  return (string.gsub(hex, '..', function(byte) return string.char(tonumber(byte, 16)) end))
end

-- The bytes that a company keeps are counted by the hour of acceptance.
local HOUR = 3600000
local function hour_of(ms) return math.floor(ms / HOUR) end

-- add_bytes adds to the bytes that a company keeps of an hour. An hour past retention has no count any
-- more. A damaged key is left unchanged.
local function add_bytes(P, company, hour, n)
  if redis.pcall('HEXISTS', P .. 'cb:' .. company, hour) ~= 1 then return end
  redis.pcall('HINCRBY', P .. 'cb:' .. company, hour, n)
  redis.pcall('HINCRBY', P .. 'c:' .. company, 'bytes', n)
end

-- The numbers of a company's events are divided into blocks. For each block, the hash
-- en:<company> holds the place where the block begins in the index (field <block>), and
-- stubs of the block's compacted events, which are not in the index (field <block>c).
local BLOCK = 128
local function block_of(number) return math.floor(number / BLOCK) end

local READY, MATCHED, SETTLED, COMPACTED = 'R', 'M', 'S', 'C'
