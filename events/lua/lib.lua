-- How an event is kept: its state, 13 digits of accepted ms, 8 hex digits of
-- commit nonce, 10 hex digits of its number in the company, and the body without
-- id and company, or of a compacted event only a digest of that.
local HEADER = 32

-- digest of a body that is not kept: 96 bits of its SHA-1, in 12 bytes, so that
-- Redis keeps header and digest in one allocation (up to 44 bytes).
local function digest(body)
  local hex = string.sub(redis.sha1hex(body), 1, 24)
  return (string.gsub(hex, '..', function(byte) return string.char(tonumber(byte, 16)) end))
end

-- What a company keeps is counted by the hour in which it was accepted.
local HOUR = 3600000
local function hour_of(ms) return math.floor(ms / HOUR) end
local READY, MATCHED, SETTLED, COMPACTED = 'R', 'M', 'S', 'C'
