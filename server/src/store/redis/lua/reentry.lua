-- Re-entry of a lock by the lease that holds it, without waiting.

-- Returns true if the lock is in use with another limit.
local function has_other_limit(limit)
  local in_use = limit_in_use()
  if set_limit > 0 then return limit == EXCLUSIVE_WEIGHT end
  return in_use > 0 and limit ~= in_use and (limit > 0 or in_use == EXCLUSIVE_WEIGHT)
end

-- Re-enters the lock, which renews the lease. Returns nil, or the tag of the rejection.
local function reenter(h, e)
  if tonumber(e.weight) > tonumber(h.weight) then return 'UPGRADE' end
  if not effective_ttl(h) then return 'ENDED' end
  if hold_count(h) >= ENTRIES_MAX then return 'ENTRIES' end
  h.entries = h.entries .. entry_text(e)
  changed['r:' .. e.request] = '@' .. h.slot
  extend(h)
end
