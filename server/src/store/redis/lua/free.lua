-- Removal of a holder.

-- Flags in the last digit of the terms: the grant was added to an existing lease; the lease is
-- revoked; the lock_delay of the revoked lease applies even if the lease is released.
local ADDED, REVOKED, DELAYS_ON_RELEASE = 1, 2, 4
local function has_flag(h, flag) return h.terms ~= '' and string.sub(h.terms, -1) % (2 * flag) >= flag end

-- Removes a holder from its slot.
local function remove(h)
  local all = holders
  holder_cache[h.slot], changed['h:' .. h.slot] = false, h.slot == 1 and ''
  if h.slot > 1 then changed['l:' .. h.lease] = false end
  all.n, all.used = all.n - 1, all.used - h.weight
  if all.n > 0 then
    all.spare = all.spare .. ',' .. h.slot
  else
    all.top, all.earliest, all.latest, all.spare = 0, 0, 0, ''
  end
end

local function free_holder(h)
  if has_flag(h, REVOKED) then changed['k:' .. h.lease] = false end
  if h.entries ~= '' then
    for request in string.gmatch(h.entries, '(%w+):%w+:%d+:') do changed['r:' .. request] = false end
  end
  if h.position then waiting().dequeue(h.position, h.request) elseif h.slot > 1 then changed['r:' .. h.request] = false end
  remove(h)
end
