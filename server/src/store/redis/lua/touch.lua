-- Touch: reports that this broker is alive, grants the lock while there is room, and returns the
-- grants that the broker may have missed: those of its calls in the REPORTED_SLOTS_MAX slots from
-- slot `from` on.
local function touch(from)
  if now > not_after then return { 'LATE', now } end
  if ms_until_grants() < 0 and era_id ~= '' then return { 'NOERA', now } end
  load()
  expire()
  local touched_ms, silent = last_touch(broker_id)
  local rejoin = not touched_ms or silent > BROKER_SILENT_AFTER_MS
  if touched_ms then touch_queue() end
  advance()
  rejoin = rejoin or must_repeat
  local mine, first = {}, tonumber(from)
  local last = math.min(first + REPORTED_SLOTS_MAX - 1, holders.top)
  read_holders(first, last)
  for slot = first, last do
    local h = holder_at(slot)
    if h and broker_of(h.attempts) == broker_id then
      mine[#mine + 1] = { h.request, h.token, holders.limit, h.position and 1 or 0 }
    end
  end
  return reply('TOUCHED', rejoin and 1 or 0, next_event(), last < holders.top and last + 1 or 0, mine)
end

exports.touch = touch
