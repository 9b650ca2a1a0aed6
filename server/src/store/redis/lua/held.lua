-- Steps of acquire for a lock that is held: re-entry, and the reply to a call that does not wait.

-- Re-enters the lock for the lease that holds it, which renews the lease. Returns nil, or the tag
-- of the rejection.
local function reenter(h, e)
  if tonumber(e.weight) > tonumber(h.weight) then return 'UPGRADE' end
  if not effective_ttl(h) then return 'ENDED' end
  if hold_count(h) >= ENTRIES_MAX then return 'ENTRIES' end
  h.entries = h.entries .. entry_text(e)
  changed['r:' .. e.request] = '@' .. h.slot
  extend(h)
end

-- Returns the reply that the lock is held.
local function held_reply()
  -- a holder that has expired closes the lock when a command ends it
  local list = holders_info(5, 16, function() end)
  return reply('HELD', queue.n, recorded_closure(), holders.limit, list)
end

exports.reenter, exports.held_reply = reenter, held_reply
