-- Removes events from the front of the list of those that wait for the history: they are written there, and may be
-- compacted.
-- KEYS: 1 the partition's due set, 2 a key that never exists
-- ARGV: 1 key prefix, then entries of the list in their order
-- The list may not begin with an entry, because another owner has removed it: then its event has been noted, too.
local P, list = ARGV[1], ARGV[1] .. 'history'
check({P})
for i = 2, #ARGV do
  local entry = ARGV[i]
  if redis.call('LINDEX', list, 0) == entry then
    redis.call('LPOP', list)
    may_compact(P, entry)
  end
end
end_settling(0)
return 1
