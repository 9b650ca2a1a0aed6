-- Selection of the next waiter of a queue, and of the broker to which the waiter's lock is handed.
--
-- Returns two booleans. The first is true if the lock can be handed to a waiter of this broker
-- whose last hand-off lapsed at `passed`. The second is true if the broker is gone: it has been
-- silent for more than 2 * BROKER_SILENT_AFTER_MS, or is unknown here.
local function broker_liveness(broker, passed)
  if broker == broker_id then return true, false end
  local touched_ms, silent = last_touch(broker)
  local is_live = touched_ms and silent <= BROKER_SILENT_AFTER_MS and touched_ms >= tonumber(passed)
  return is_live, not touched_ms or silent > 2 * BROKER_SILENT_AFTER_MS
end

-- Returns the broker to which the lock of a waiter is handed, or nil, and true if all brokers of
-- the waiter are gone. That broker is the one of the newest attempt that is alive, and this attempt
-- becomes the newest of all.
local function next_broker(w)
  local newest = broker_of(w.attempts)
  if broker_liveness(newest, w.passed) then return newest, false end
  local chosen, left, all_gone = nil, '', true
  for at = #w.attempts - ATTEMPT_LEN + 2, 1, -ATTEMPT_LEN do
    local attempt = string.sub(w.attempts, at, at + ATTEMPT_LEN - 2)
    local is_live, is_gone = broker_liveness(broker_of(attempt), w.passed)
    if is_live and not chosen then
      chosen = attempt
    elseif not is_gone then
      left = attempt .. (left == '' and '' or ',') .. left
    end
    all_gone = all_gone and is_gone
  end
  if not chosen then return nil, all_gone end
  w.attempts = left .. (left == '' and '' or ',') .. chosen
  return broker_of(chosen), false
end

-- True if a waiter of this broker was skipped and has to send acquire again: its lease already holds
-- the lock, or it needs more than the limit.
local must_repeat = false

-- Returns the first waiter from queue position `position` on that can be granted the lock, and its
-- queue position. Drops waiters whose wait has timed out, or whose brokers are gone. Skips waiters of
-- silent brokers, waiters whose lease holds the lock, which re-enter it by a repeated acquire, and
-- waiters that need more than the limit, which are rejected when they repeat theirs.
local function next_waiter(position)
  local seen = 0
  while queue.n > 0 and position <= queue.tail do
    if seen == SCAN_MAX then
      queue.resume, is_queue_touched, more = position, true, 1
      return nil
    end
    seen = seen + 1
    local w, gone = read_waiter(position), false
    if w and not w.slot then
      -- the waiter's broker, whose clock may be slower by a fifth, ends the wait before
      if w.since + expiry(w.until_ms - w.since) <= now then
        gone = true
      else
        local broker
        broker, gone = next_broker(w)
        local can_fit = tonumber(w.weight) <= holders.limit
        if broker and can_fit and not holder_of(w.lease) then return w, position end
        must_repeat = must_repeat or broker == broker_id
      end
      if gone then
        record_change('ABANDONED', w)
        dequeue(position, w.request)
      end
    elseif not w and position == queue.head then
      queue.head, is_queue_touched = position + 1, true
    end
    position = position + 1
  end
  if queue.resume > 0 then queue.resume, is_queue_touched = 0, true end
end
