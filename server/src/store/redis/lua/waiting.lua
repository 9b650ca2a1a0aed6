-- Steps of acquire: waiting in the queue, and the reply without a grant.

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

local function held_or_queued(wait, position)
  changed.v = SCHEMA -- so that a record without a TTL gets one even if nothing changed
  if wait > 0 then
    return reply('QUEUED', next_event(), position, position == queue.tail and queue.n or 0, last_token)
  end
  return rare().held_reply()
end

exports.requeue, exports.enqueue, exports.held_or_queued = requeue, enqueue, held_or_queued
