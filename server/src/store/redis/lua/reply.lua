-- Replies of acquire, with the hand-offs of the command.

-- Writes the changes before replying, so that an expiry that was noticed is recorded with every
-- reply.
local function reply(tag, ...)
  if next(changed) or is_queue_touched then save() end
  return { tag, now, more, hand_offs, ... }
end

local function granted(h) return reply('GRANTED', moved, grant_fields(h)) end

local function held_or_queued(wait, position)
  changed.v = '1' -- so that a record without a TTL gets one even if nothing changed
  if wait > 0 then
    return reply('QUEUED', next_event(), position, position == queue.tail and queue.n or 0, last_token)
  end
  local closed = lock_delay_until
  local list = holders_info(5, 16)
  lock_delay_until = closed -- a holder that is over closes the lock when a command ends it
  return reply('HELD', queue.n, math.max(closed - now, 0), holders.limit, list)
end
