-- How an event is kept: its state, 13 digits of accepted ms, 8 hex digits of
-- commit nonce, 10 hex digits of its number in the company, and the body without
-- id and company, with the trace if there is one, or of a compacted event only a
-- digest of the body.
local HEADER = 32

-- content is the body alone. Behind that of an event that was sent in a trace the trace
-- is kept: 25 bytes and a T; a body ends with }.
local function content(kept)
  if string.sub(kept, -1) == 'T' then return string.sub(kept, 1, -27) end
  return kept
end

-- digest of a body that is not kept: 96 bits of its SHA-1, in 12 bytes, so that
-- Redis keeps header and digest in one allocation (up to 44 bytes).
local function digest(body)
  local hex = string.sub(redis.sha1hex(body), 1, 24)
  return (string.gsub(hex, '..', function(byte) return string.char(tonumber(byte, 16)) end))
end

-- What a company keeps is counted by the hour in which it was accepted.
local HOUR = 3600000
local function hour_of(ms) return math.floor(ms / HOUR) end

-- How much longer than retention what is known of an event is kept, in ms.
local GRACE = 600000

-- The numbers of a company's events are divided into blocks. The hash en:<company>
-- has of each block where it begins in the index (field <block>), and what is left of
-- its compacted events, which are in the index no more (<block>c).
local BLOCK = 128
local function block_of(number) return math.floor(number / BLOCK) end

local READY, MATCHED, SETTLED, COMPACTED = 'R', 'M', 'S', 'C'
