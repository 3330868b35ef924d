-- How an event is kept: its state, 13 digits of accepted ms, 8 hex digits of
-- commit nonce, 10 hex digits of its number in the company, and the body without
-- id and company, or of a compacted event the SHA-1 of that in hex.
local HEADER = 32
local HOUR = 3600000
local function hour_of(ms) return math.floor(ms / HOUR) end
local READY, MATCHED, SETTLED, COMPACTED = 'R', 'M', 'S', 'C'
