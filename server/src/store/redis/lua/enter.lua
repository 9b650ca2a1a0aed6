-- Lets a lease that holds the lock enter it once more, without waiting.

-- Whether the lock is in use with another limit.
local function other_limit(limit)
  local in_use = limit_in_use()
  if set_limit > 0 then return limit == WHOLE end
  return in_use > 0 and limit ~= in_use and (limit > 0 or in_use == WHOLE)
end

-- The tag that says why it may not; nil if it has entered, and renewed the lease by that.
local function enter(h, e)
  if tonumber(e.weight) > tonumber(h.weight) then return 'UPGRADE' end
  if not announced(h) then return 'ENDED' end
  if hold_count(h) >= ENTRIES_MAX then return 'ENTRIES' end
  h.entries = h.entries .. entry_text(e)
  changed['r:' .. e.request] = '@' .. h.slot
  extend(h)
end
