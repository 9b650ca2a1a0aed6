-- Grants of queued requests, by one rule for all modes: a request is granted when its weight fits
-- under the limit beside the weights of the holders and no request is before it in the queue.

-- Returns the limit in use, or 0 while the lock has neither holders nor waiters.
local function limit_in_use()
  if set_limit > 0 then return set_limit end
  return (holders.n > 0 or queue.n > 0) and holders.limit or 0
end

local function fits(weight)
  return lock_delay_until <= now and holders.n < HOLDERS_MAX and holders.used + weight <= holders.limit
end

-- Grants the lock in queue order while there is room: finally to waiters of this broker,
-- provisionally to those of other brokers. Returns true if the next waiter does not fit.
local function advance()
  if queue.n == 0 then return false end
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
        messages[broker] = (messages[broker] or lock) .. '\n' .. w.request .. '\n' .. h.token
      end
      local at = #hand_offs
      hand_offs[at + 1], hand_offs[at + 2], hand_offs[at + 3] = w.request, broker, h.token
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
  local closed = math.max(lock_delay_until - now, 0)
  if holders.n == 0 then return math.max(ms_until_grants(), closed) end
  return closed > 0 and closed or math.max(holders.earliest - now, 0)
end
