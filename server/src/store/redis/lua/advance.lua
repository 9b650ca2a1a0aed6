-- The one rule for every kind of lock: a call is granted when its weight fits under the limit beside
-- the holders' and nobody is before it in line.

-- Milliseconds until grants are allowed; -1: never in this era.
local closed_ms
local function grants_in()
  if not closed_ms then
    local era = era_key and call('GET', era_key)
    if not era_key then
      -- In a cluster the era is no key, or nothing could be done while its slot moves: it follows the
      -- id, 'era_id|era' (and perhaps '!': tell.lua). No id grants nothing, and an era that is elsewhere
      -- already is none.
      era_id, era = string.match(era_id, '^(%w*)|(.-)!?$')
      era = era_id ~= '' and redis.pcall('GET', era)
    end
    local id, before = string.match(type(era) == 'string' and era or '', '^([^|]*)|(%d+)|')
    closed_ms = id == era_id and math.max(tonumber(before) - now, 0) or -1
  end
  return closed_ms
end

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
  local place = math.max(queue.head, queue.resume)
  repeat
    w, place = next_waiter(place)
    -- a lease that holds the lock already enters it by asking, not by waiting
    blocked = w and (not fits(w.weight) or holder_of(w.lease))
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
  return blocked or more == 1
end

-- Milliseconds until the lock may have room by itself; 0: nobody can tell.
local function next_event()
  local closed = math.max(closed_until - now, 0)
  if holders.n == 0 then return math.max(grants_in(), closed) end
  return closed > 0 and closed or math.max(holders.earliest - now, 0)
end
