-- Queue of the lock: its positions, and the last touches of the brokers that have waiters.
local function broker_of(attempts) return string.sub(attempts, -16) end

local function read_waiter(position)
  local w = field('w:' .. position)
  if not w then return nil end
  local lease, request, arguments, ttl, since, until_ms, passed, weight, terms, slot, attempts, stream, owner =
    string.match(w, '^(%w+)|(%w+)|(%w+)|(%d+)|(%d+)|(%d+)|(%d+)|(%d+)|([^|]*)|(%d*)|([^|]*)|([^|]*)|(.*)$')
  return { lease = lease, request = request, arguments = arguments, ttl = ttl,
    since = since, until_ms = tonumber(until_ms), passed = passed, weight = weight,
    terms = terms, slot = tonumber(slot), attempts = attempts, stream = stream,
    owner = owner }
end

local function write_waiter(position, w)
  changed['w:' .. position] = w.lease .. '|' .. w.request .. '|' .. w.arguments .. '|' .. w.ttl .. '|' .. w.since .. '|'
    .. int(w.until_ms) .. '|' .. w.passed .. '|' .. w.weight .. '|' .. w.terms .. '|' .. (w.slot or '') .. '|'
    .. w.attempts .. '|' .. w.stream .. '|' .. w.owner
end

-- Returns the clock that measures the silence of brokers. It omits gaps between touches of more
-- than TOUCH_STALL_MS.
local function silence_clock()
  local gap = math.max(now - queue.ms, 0)
  return queue.heard + (gap > TOUCH_STALL_MS and 0 or gap)
end

-- Returns the time of the broker's last touch and its silence since then, or nil if the broker is
-- unknown here.
local function last_touch(broker)
  local ms, heard = string.match(field('b:' .. broker) or '', '^(%d+)|(%d+)$')
  if not ms then return nil end
  return tonumber(ms), math.max(silence_clock() - heard, 0)
end

-- Removes a waiter. An empty queue leaves no fields behind.
local function dequeue(position, request)
  changed['w:' .. position], changed['r:' .. request] = false, false
  queue.n, is_queue_touched = queue.n - 1, true
  if position == queue.head then queue.head = position + 1 end
  if queue.n > 0 then return end
  for at = 1, #queue.brokers, 16 do changed['b:' .. string.sub(queue.brokers, at, at + 15)] = false end
  queue = { head = 1, tail = 0, n = 0, until_ms = 0, ms = 0, heard = 0, resume = 0, brokers = '' }
end

exports.read_waiter, exports.dequeue = read_waiter, dequeue
