-- The line before the lock: attempts, places, and which brokers still look after their waiters.
local function attempts_add(attempts, attempt)
  if string.find(attempts, attempt, 1, true) then return attempts end
  if #attempts + 1 >= ATTEMPTS_MAX * ATTEMPT_LEN then attempts = string.sub(attempts, ATTEMPT_LEN + 1) end
  return (attempts == '' and '' or attempts .. ',') .. attempt .. '@' .. me
end

-- What is left without the attempt; nil if it was not there.
local function attempts_remove(attempts, attempt)
  local at = string.find(attempts, attempt, 1, true)
  if not at then return nil end
  local left = string.sub(attempts, 1, at - 1) .. string.sub(attempts, at + ATTEMPT_LEN)
  return string.sub(left, -1) == ',' and string.sub(left, 1, -2) or left
end

local function broker_of(attempts) return string.sub(attempts, -16) end

local function read_waiter(place)
  local w = field('w:' .. fmt(place))
  if not w then return nil end
  local lease, request, arguments, ttl, since, until_ms, passed, weight, slot, attempts, owner =
    string.match(w, '^(%w+)|(%w+)|(%w+)|(%d+)|(%d+)|(%d+)|(%d+)|(%d+)|(%d*)|([^|]*)|(.*)$')
  return { lease = lease, request = request, arguments = arguments, ttl = tonumber(ttl),
    since = tonumber(since), until_ms = tonumber(until_ms), passed = tonumber(passed),
    weight = tonumber(weight), slot = tonumber(slot), attempts = attempts, owner = owner }
end

local function write_waiter(place, w)
  changed['w:' .. fmt(place)] = table.concat({ w.lease, w.request, w.arguments, fmt(w.ttl),
    fmt(w.since), fmt(w.until_ms), fmt(w.passed), fmt(w.weight), w.slot or '', w.attempts, w.owner }, '|')
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

local function touch_queue()
  queue.heard, queue.ms, touched_queue = heard_now(), now, true
  changed['b:' .. me] = fmt(queue.ms) .. '|' .. fmt(queue.heard)
  if not string.find(queue.brokers, me, 1, true) then queue.brokers = queue.brokers .. me end
end

local function join(w)
  queue.tail, queue.n, touched_queue = queue.tail + 1, queue.n + 1, true
  queue.until_ms = math.max(queue.until_ms, w.until_ms)
  write_waiter(queue.tail, w)
  changed['r:' .. w.request] = fmt(queue.tail)
end

-- Takes a waiter out. An empty line leaves nothing behind.
local function drop(place, request)
  changed['w:' .. fmt(place)], changed['r:' .. request] = false, false
  queue.n, touched_queue = queue.n - 1, true
  if place == queue.head then queue.head = place + 1 end
  if queue.n > 0 then return end
  for at = 1, #queue.brokers, 16 do changed['b:' .. string.sub(queue.brokers, at, at + 15)] = false end
  queue = { head = 1, tail = 0, n = 0, until_ms = 0, ms = 0, heard = 0, resume = 0, brokers = '' }
end
