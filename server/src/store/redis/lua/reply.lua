-- How acquire answers.

-- Whatever the answer is, an expiry that was noticed stays noticed.
local function reply(tag, ...)
  if next(changed) or touched_queue then save() end
  return { tag, now, more, hand_offs, ... }
end

local function granted(h) return reply('GRANTED', moved, shown_grant(h)) end

local function held_or_queued(wait, place)
  changed.v = '1' -- so that a record without a TTL gets one even if nothing changed
  if wait > 0 then return reply('QUEUED', next_event(), place, place == queue.tail and queue.n or 0, fence) end
  local closed = closed_until
  local list = shown(5, 16)
  closed_until = closed -- a holder that is over closes the lock when a command ends it
  return reply('HELD', queue.n, math.max(closed - now, 0), holders.limit, list)
end
