-- Grants of queued requests, by one rule for all modes: a request is granted when its weight fits
-- under the limit beside the weights of the holders and no request is before it in the queue.

-- Records that this broker is alive.
local function touch_queue()
  queue.heard, queue.ms, is_queue_touched = silence_clock(), now, true
  changed['b:' .. broker_id] = queue.ms .. '|' .. queue.heard
  if not string.find(queue.brokers, broker_id, 1, true) then queue.brokers = queue.brokers .. broker_id end
end

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

-- True if a waiter of this broker was skipped and has to send acquire again: its lease already
-- holds the lock, or it needs more than the limit, or a longer span than allowed.
local must_repeat = false

-- Returns the first waiter from queue position `position` on that can be granted the lock, and its
-- queue position. Drops waiters whose wait has timed out, or whose brokers are gone. Skips waiters
-- of silent brokers, waiters whose lease holds the lock, which re-enter it by a repeated acquire,
-- and waiters that need more than the limit or a longer span than allowed, which are rejected when
-- they repeat theirs.
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
        local can_fit = tonumber(w.weight) <= holders.limit and fits_span(w)
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

-- Grants the lock in queue order while there is room: finally to waiters of this broker,
-- provisionally to those of other brokers. Returns true if the next waiter does not fit.
local function grant_waiters()
  if ms_until_grants() ~= 0 or not fits(1) then return true end
  local granted, blocked, w, messages = 0, false
  -- expired holders may be left for the next command (`more`); the queue advances nevertheless
  local left = more
  more = 0
  local position = math.max(queue.head, queue.resume)
  repeat
    w, position = next_waiter(position)
    blocked = w and not fits(w.weight)
    if w and not blocked then
      local broker, h = broker_of(w.attempts)
      queue.resume, is_queue_touched = 0, true
      if broker == broker_id then
        dequeue(position, w.request)
        h = grant(w)
      else
        h = grant(w, position)
        w.slot = h.slot
        write_waiter(position, w)
        messages = messages or {}
        messages[broker] = table.concat({ messages[broker] or lock, w.request, h.token, holders.limit }, '\n')
      end
      local at = #hand_offs
      hand_offs[at + 1], hand_offs[at + 2], hand_offs[at + 3], hand_offs[at + 4] = w.request, broker, h.token, holders.limit
      position, granted, blocked = position + 1, granted + 1, not fits(1)
      if granted == GRANTS_MAX and not blocked then more = 1 end
    end
  until not w or blocked or more == 1
  for broker, message in pairs(messages or {}) do publish(broker, message) end
  blocked = blocked or more == 1
  more = math.max(more, left)
  return blocked
end

-- Returns the milliseconds until the lock can become free without a release, or 0 if that time is
-- unknown.
local function next_event()
  local closed = math.max(closed_until - now, 0)
  if holders.n == 0 then return math.max(ms_until_grants(), closed) end
  return closed > 0 and closed or math.max(holders.earliest - now, 0)
end

-- Notifies the brokers that subscribed to the release of the lock (vote.lua), if it is free.
local function publish_release()
  local brokers = holders.n == 0 and field('n')
  if not brokers then return end
  changed.n = false
  for at = 1, #brokers, #broker_id do
    local broker = string.sub(brokers, at, at + #broker_id - 1)
    if broker ~= broker_id then publish(broker, lock) end
  end
end

exports.grant_waiters, exports.publish_release = grant_waiters, publish_release
