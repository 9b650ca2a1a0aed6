-- How acquire answers.

-- Whatever the answer is, an expiry that was noticed stays noticed.
local function reply(tag, ...)
  if next(changed) or touched_queue then save() end
  return { tag, now, more, hand_offs, ... }
end

-- No grants, for so long or in this era at all.
local function not_yet(closed)
  if next(changed) then save() end
  return closed < 0 and { 'NOERA', now, hand_offs } or { 'RECOVERING', now, closed, hand_offs }
end

local function granted(h) return reply('GRANTED', moved, shown_grant(h)) end

local function held_or_queued(wait, place)
  changed.v = '1' -- so that a record without a TTL gets one even if nothing changed
  if wait > 0 then return reply('QUEUED', next_event(), place, place == queue.tail and queue.n or 0, fence) end
  return reply('HELD', queue.n, math.max(closed_until - now, 0), holders.limit, (shown(5, 16)))
end
