-- How a holder's time ends.

-- The broker that runs the command is told, once for all brokers, among the hand-offs of its answer:
-- '!', 'kind|lease|token|held_ms|reason', owner.
local function tell_end(h, reason)
  local max_hold = h.terms ~= '' and tonumber(string.match(h.terms, '^%d+')) or 0
  local is_cut = max_hold > 0 and h.since + max_hold <= h.expires
  local kind = has_flag(h, REVOKED) and 'REVOKED' or is_cut and 'MAXHOLD' or 'EXPIRED'
  local text = table.concat({ kind, h.lease, h.token, math.max(h.expires - h.since, 0), reason or '' }, '|')
  local at = #hand_offs
  hand_offs[at + 1], hand_offs[at + 2], hand_offs[at + 3] = '!', text, h.owner
end

-- It is remembered, and may close the lock for a while.
local function end_lease(h)
  local reason = has_flag(h, REVOKED) and field('k:' .. h.lease) or nil
  tell_end(h, reason)
  close_after(h)
  note(has_flag(h, REVOKED) and 'REVOKED' or 'EXPIRED', h)
  free(h)
  expired = remember('e', expired, h.lease, h.expires, kept_expired, reason)
end

-- What ends a holder that may not be renewed any more, and why it was revoked.
local function over(h)
  if has_flag(h, REVOKED) then return 'REVOKED', field('k:' .. h.lease) end
  return 'MAXHOLD'
end

-- An unclaimed hand-off falls back to its place in line, and nothing is remembered of it.
local function fall_back(h)
  local w = read_waiter(h.place)
  w.attempts, w.passed, w.slot = h.attempts, h.expires, nil
  write_waiter(h.place, w)
  remove(h)
end

-- Returns the holder if its time is not over; otherwise ends it.
local function living(h)
  if not h or h.expires > now then return h end
  if h.place then fall_back(h) else end_lease(h) end
end

-- Takes the lock off holders whose time is over: so many at once, so that the script does not take long. The
-- command that follows goes on.
local function expire()
  if holders.n == 0 or holders.earliest > now then return end
  read_holders(1, holders.top)
  local earliest, ended = 0, 0
  for slot = 1, holders.top do
    local text = field('h:' .. slot)
    local expires = text and tonumber(string.match(text, '^%w+|%w+|%w+|%d+|%d+|%d+|(%d+)'))
    if expires and expires > now then
      earliest = earliest == 0 and expires or math.min(earliest, expires)
    elseif expires and ended == ENDS_MAX then
      earliest, more = earliest == 0 and expires or math.min(earliest, expires), 1
    elseif expires then
      living(holder_at(slot))
      ended = ended + 1
    end
  end
  holders.earliest, changed.v = earliest, SCHEMA
end
