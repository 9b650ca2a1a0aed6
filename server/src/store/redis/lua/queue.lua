-- The line before the lock: places, and which brokers still look after their waiters.
local function broker_of(attempts) return string.sub(attempts, -16) end

local function read_waiter(place)
  local w = field('w:' .. place)
  if not w then return nil end
  local lease, request, arguments, ttl, since, until_ms, passed, weight, terms, slot, attempts, stream, owner =
    string.match(w, '^(%w+)|(%w+)|(%w+)|(%d+)|(%d+)|(%d+)|(%d+)|(%d+)|([^|]*)|(%d*)|([^|]*)|([^|]*)|(.*)$')
  return { lease = lease, request = request, arguments = arguments, ttl = ttl,
    since = since, until_ms = tonumber(until_ms), passed = passed, weight = weight,
    terms = terms, slot = tonumber(slot), attempts = attempts, stream = stream,
    owner = owner }
end

local function write_waiter(place, w)
  changed['w:' .. place] = w.lease .. '|' .. w.request .. '|' .. w.arguments .. '|' .. w.ttl .. '|' .. w.since .. '|'
    .. int(w.until_ms) .. '|' .. w.passed .. '|' .. w.weight .. '|' .. w.terms .. '|' .. (w.slot or '') .. '|'
    .. w.attempts .. '|' .. w.stream .. '|' .. w.owner
end

-- The clock of silence: a gap between touches above STALL does not count.
local function heard_now()
  local gap = math.max(now - queue.ms, 0)
  return queue.heard + (gap > STALL and 0 or gap)
end

-- The broker's last touch, and for how long it was silent since; nil if it is unknown here.
local function last_touch(broker)
  local ms, heard = string.match(field('b:' .. broker) or '', '^(%d+)|(%d+)$')
  if not ms then return nil end
  return tonumber(ms), math.max(heard_now() - heard, 0)
end

-- Takes a waiter out. An empty line leaves nothing behind.
local function drop(place, request)
  changed['w:' .. place], changed['r:' .. request] = false, false
  queue.n, touched_queue = queue.n - 1, true
  if place == queue.head then queue.head = place + 1 end
  if queue.n > 0 then return end
  for at = 1, #queue.brokers, 16 do changed['b:' .. string.sub(queue.brokers, at, at + 15)] = false end
  queue = { head = 1, tail = 0, n = 0, until_ms = 0, ms = 0, heard = 0, resume = 0, brokers = '' }
end
