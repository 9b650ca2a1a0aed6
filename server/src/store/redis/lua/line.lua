-- Whether a broker can be handed the lock of a waiter whose last hand-off lapsed at `passed`, and whether it
-- is given up.
local function presence(broker, passed)
  if broker == me then return true, false end
  local touched_ms, silent = last_touch(broker)
  local is_live = touched_ms and silent <= SILENT and touched_ms >= tonumber(passed)
  return is_live, not touched_ms or silent > 2 * SILENT
end

-- The broker that is handed a waiter's lock, if there is one, and whether all that might be are given up. It
-- is that of the newest attempt that lives, which becomes the newest of all.
local function next_broker(w)
  local newest = broker_of(w.attempts)
  if presence(newest, w.passed) then return newest, false end
  local chosen, left, all_gone = nil, '', true
  for at = #w.attempts - ATTEMPT_LEN + 2, 1, -ATTEMPT_LEN do
    local attempt = string.sub(w.attempts, at, at + ATTEMPT_LEN - 2)
    local is_live, is_gone = presence(broker_of(attempt), w.passed)
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

-- Whether a waiter of this broker was passed over that is to ask again, since its lease holds the lock.
local may_enter = false

-- The first waiter from `place` on that can be granted the lock, and its place. Those past their
-- time, of more than the whole limit, or of brokers silent for long, are dropped; those of silent
-- brokers are passed over, and those whose lease holds the lock: they enter it by asking.
local function next_waiter(place)
  local seen = 0
  while queue.n > 0 and place <= queue.tail do
    if seen == SCAN_MAX then
      queue.resume, touched_queue, more = place, true, 1
      return nil
    end
    seen = seen + 1
    local w, gone = read_waiter(place), false
    if w and not w.slot then
      -- its broker, whose clock may run slower by a fifth, ends the wait before
      if w.since + expiry(w.until_ms - w.since) <= now or tonumber(w.weight) > holders.limit then
        gone = true
      else
        local broker
        broker, gone = next_broker(w)
        if broker and not holder_of(w.lease) then return w, place end
        may_enter = may_enter or broker == me
      end
      if gone then
        note('ABANDONED', w)
        drop(place, w.request)
      end
    elseif not w and place == queue.head then
      queue.head, touched_queue = place + 1, true
    end
    place = place + 1
  end
  if queue.resume > 0 then queue.resume, touched_queue = 0, true end
end
