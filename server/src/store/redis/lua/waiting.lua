-- Steps of acquire: waiting in the queue, re-entry, and the reply without a grant.

-- Handles a repeated call of a waiter: it keeps its queue position and now belongs to this broker.
local function requeue(position, w, again, attempts, stream)
  w.attempts, w.passed = attempts, 0
  w.until_ms, w.stream = math.max(w.until_ms, again.until_ms), stream
  queue.until_ms = math.max(queue.until_ms, w.until_ms)
  write_waiter(position, w)
  touch_queue()
end

local function enqueue(w)
  touch_queue()
  queue.tail, queue.n, is_queue_touched = queue.tail + 1, queue.n + 1, true
  queue.until_ms = math.max(queue.until_ms, w.until_ms)
  write_waiter(queue.tail, w)
  record_change('QUEUED', w)
  changed['r:' .. w.request] = queue.tail
end

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

local function held_or_queued(wait, position)
  changed.v = SCHEMA -- so that a record without a TTL gets one even if nothing changed
  if wait > 0 then
    return reply('QUEUED', next_event(), position, position == queue.tail and queue.n or 0, last_token)
  end
  -- a holder that has expired closes the lock when a command ends it
  local list = holders_info(5, 16, function() end)
  return reply('HELD', queue.n, recorded_closure(), holders.limit, list)
end

exports.requeue, exports.enqueue = requeue, enqueue
exports.reenter, exports.held_or_queued = reenter, held_or_queued
