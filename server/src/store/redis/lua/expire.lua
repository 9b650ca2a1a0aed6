-- Expiry of holders: ends expired leases and reports them, and lapses hand-offs that were not
-- claimed.

-- Reports the end of a lease to the broker that runs the command, and to no other. The report is an
-- element of the hand-offs in the reply: '!', 'kind|lease|token|held_ms|reason', owner.
local function report_end(h, reason)
  local max_hold = h.terms ~= '' and tonumber(string.match(h.terms, '^%d+')) or 0
  local is_cut = max_hold > 0 and h.since + max_hold <= h.expires
  local kind = has_flag(h, REVOKED) and 'REVOKED' or is_cut and 'MAXHOLD' or 'EXPIRED'
  local text = table.concat({ kind, h.lease, h.token, math.max(h.expires - h.since, 0), reason or '' }, '|')
  local at = #hand_offs
  hand_offs[at + 1], hand_offs[at + 2], hand_offs[at + 3] = '!', text, h.owner
end

-- Ends a lease: reports and records its end, applies its lock_delay, and frees its slot.
local function end_lease(h)
  local reason = has_flag(h, REVOKED) and field('k:' .. h.lease) or nil
  report_end(h, reason)
  start_lock_delay(h)
  record_change(has_flag(h, REVOKED) and 'REVOKED' or 'EXPIRED', h)
  free_holder(h)
  expired = record_end('e', expired, h.lease, h.expires, expiry_counts, reason)
end

-- Returns why a holder cannot be renewed, and the reason if it was revoked.
local function end_reason(h)
  if has_flag(h, REVOKED) then return 'REVOKED', field('k:' .. h.lease) end
  return 'MAXHOLD'
end

-- Returns an unclaimed hand-off to its queue position. Nothing of the hand-off is recorded.
local function lapse(h)
  local w = read_waiter(h.position)
  w.attempts, w.passed, w.slot = h.attempts, h.expires, nil
  write_waiter(h.position, w)
  remove(h)
end

-- Returns the holder if it has not expired. Otherwise ends it and returns nil.
local function unexpired(h)
  if not h or h.expires > now then return h end
  if h.position then lapse(h) else end_lease(h) end
end

-- Ends expired holders, at most EXPIRATIONS_MAX per command to bound the run time of the script.
-- The next command continues.
local function expire()
  if holders.n == 0 or holders.earliest > now then return end
  read_holders(1, holders.top)
  local earliest, ended = 0, 0
  for slot = 1, holders.top do
    local text = field('h:' .. slot)
    local expires = text and tonumber(string.match(text, '^%w+|%w+|%w+|%d+|%d+|%d+|(%d+)'))
    if expires and expires > now then
      earliest = earliest == 0 and expires or math.min(earliest, expires)
    elseif expires and ended == EXPIRATIONS_MAX then
      earliest, more = earliest == 0 and expires or math.min(earliest, expires), 1
    elseif expires then
      unexpired(holder_at(slot))
      ended = ended + 1
    end
  end
  holders.earliest, changed.v = earliest, SCHEMA
end
