-- The first waiter from `place` on that can be granted the lock, and its place. Those past their
-- time, of more than the whole limit, or of brokers silent for long, are dropped; those of silent
-- brokers are passed over.
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
      local broker = broker_of(w.attempts)
      if w.until_ms <= now or tonumber(w.weight) > holders.limit then
        gone = true
      elseif broker == me then
        return w, place
      else
        local touched_ms, silent = last_touch(broker)
        gone = not touched_ms or silent > 2 * SILENT
        if not gone and silent <= SILENT and touched_ms >= tonumber(w.passed) then return w, place end
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
