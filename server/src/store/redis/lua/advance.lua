-- The one rule for every kind of lock: a call is granted when its weight fits under the limit beside
-- the holders' and nobody is before it in line.

-- 0 while nobody holds the lock or waits for it.
local function limit_in_use()
  if set_limit > 0 then return set_limit end
  return (holders.n > 0 or queue.n > 0) and holders.limit or 0
end

local function fits(weight)
  return closed_until <= now and holders.n < HOLDERS_MAX and holders.used + weight <= holders.limit
end

-- Grants the lock in the order of the line, as far as there is room: to waiters of this broker at
-- once, to others provisionally. True if somebody is next for whom there is none.
local function advance()
  if queue.n == 0 then return false end
  if grants_in() ~= 0 or not fits(1) then return true end
  local granted, blocked, w, messages = 0, false
  -- holders whose time is over may be left for the next command: the line goes on all the same
  local left = more
  more = 0
  local place = math.max(queue.head, queue.resume)
  repeat
    w, place = next_waiter(place)
    blocked = w and not fits(w.weight)
    if w and not blocked then
      local broker, h = broker_of(w.attempts)
      queue.resume, touched_queue = 0, true
      if broker == me then
        drop(place, w.request)
        h = grant(w)
      else
        h = grant(w, place)
        w.slot = h.slot
        write_waiter(place, w)
        messages = messages or {}
        messages[broker] = (messages[broker] or lock) .. '\n' .. w.request .. '\n' .. h.token
      end
      local at = #hand_offs
      hand_offs[at + 1], hand_offs[at + 2], hand_offs[at + 3] = w.request, broker, h.token
      place, granted, blocked = place + 1, granted + 1, not fits(1)
      if granted == GRANTS_MAX and not blocked then more = 1 end
    end
  until not w or blocked or more == 1
  for broker, message in pairs(messages or {}) do tell(broker, message) end
  blocked = blocked or more == 1
  more = math.max(more, left)
  return blocked
end

-- Milliseconds until the lock may have room by itself; 0: nobody can tell.
local function next_event()
  local closed = math.max(closed_until - now, 0)
  if holders.n == 0 then return math.max(grants_in(), closed) end
  return closed > 0 and closed or math.max(holders.earliest - now, 0)
end
