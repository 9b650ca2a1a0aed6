-- What happens when the holder's time is over, or the lock is free and somebody waits.

-- Takes the lock off a holder whose time is over. An unclaimed hand-off falls back to its place in
-- line, and nothing is remembered of it. True if there was one.
local function expire()
  if not holder or holder.expires > now then return false end
  if holder.place then
    local w = read_waiter(holder.place)
    w.attempts, w.passed = holder.attempts, holder.expires
    write_waiter(holder.place, w)
  else
    expired = remember('e', expired, holder.lease, holder.expires, kept_expired)
  end
  holder = nil
  write_holder()
  return true
end

local function free()
  if holder.place then drop(holder.place, holder.request) end
  holder = nil
  write_holder()
end

-- The first waiter that can be granted the lock, and its place. Those past their time, or of brokers
-- silent for long, are dropped; those of silent brokers are passed over, keeping their place.
local function next_waiter()
  local place, seen = math.max(queue.head, queue.resume), 0
  while place <= queue.tail do
    if seen == SCAN_MAX then
      queue.resume, touched_queue, more = place, true, 1
      return nil
    end
    seen = seen + 1
    local w, gone = read_waiter(place), false
    if w then
      local broker = broker_of(w.attempts)
      if w.until_ms <= now then
        gone = true
      elseif broker == me then
        return w, place
      else
        local touched_ms, silent = last_touch(broker)
        gone = not touched_ms or silent > 2 * SILENT
        if not gone and silent <= SILENT and touched_ms >= w.passed then return w, place end
      end
      if gone then drop(place, w.request) end
      if queue.n == 0 then return nil end
    elseif place == queue.head then
      queue.head, touched_queue = place + 1, true
    end
    place = place + 1
  end
  if queue.resume > 0 then queue.resume, touched_queue = 0, true end
end

-- Hands a free lock to the next waiter: of this broker at once, of another one provisionally.
local function advance()
  if holder or queue.n == 0 or grants_in() ~= 0 then return end
  local w, place = next_waiter()
  if not w then return end
  local broker = broker_of(w.attempts)
  queue.resume, touched_queue = 0, true
  if broker == me then
    drop(place, w.request)
    grant(w)
  else
    grant(w, place)
    local channel = string.match(lock, '^[^{]*') .. 'b:' .. broker
    call('PUBLISH', channel, lock .. '\n' .. w.request .. '\n' .. fmt(fence))
  end
  hand_offs = { w.request, broker, fence }
end

-- Milliseconds until the lock may become free by itself; 0: nobody can tell.
local function next_event()
  if holder then return math.max(holder.expires - now, 0) end
  return math.max(grants_in(), 0)
end
