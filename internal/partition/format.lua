-- check refuses the script when this build cannot read the stored format of one of the
-- partitions with these key prefixes. This build reads the formats OLDEST to NEWEST.
local function check(prefixes)
  local keys = {}
  for i, P in ipairs(prefixes) do keys[i] = P .. 'format' end
  for i, format in ipairs(redis.call('MGET', unpack(keys))) do
    format = tonumber(format or 1)
    if format < OLDEST or format > NEWEST then
      error({err = string.format('FORMAT %s %d', string.match(prefixes[i], '%d+'), format)})
    end
  end
end

