-- Touch: says that this broker lives, grants the lock as far as there is room, and tells what it may
-- have missed: every grant that belongs to a call of its own, among so many holders from the slot `from` on.
local function verb(from)
  if now > not_after then return { 'LATE', now } end
  if grants_in() < 0 and era_id ~= '' then return { 'NOERA', now } end
  load()
  expire()
  local touched_ms, silent = last_touch(me)
  local rejoin = not touched_ms or silent > SILENT
  if touched_ms then touch_queue() end
  advance()
  rejoin = rejoin or may_enter
  local mine, first = {}, tonumber(from)
  local last = math.min(first + TOLD_SLOTS_MAX - 1, holders.top)
  read_holders(first, last)
  for slot = first, last do
    local h = holder_at(slot)
    if h and broker_of(h.attempts) == me then
      mine[#mine + 1] = { h.request, h.token, h.place and 1 or 0 }
    end
  end
  local event = next_event()
  if next(changed) or touched_queue then save() end
  return { 'TOUCHED', now, more, hand_offs, rejoin and 1 or 0, event, last < holders.top and last + 1 or 0, mine }
end
