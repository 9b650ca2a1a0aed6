-- Effects of a call on the record: its attempts, its queue position, and the touch of its broker.
local function append_own_attempt(attempts, attempt)
  return (attempts == '' and '' or attempts .. ',') .. attempt .. '@' .. broker_id
end

-- Appends an attempt to the list of a holder, as its newest attempt.
local function add_attempt(attempts, attempt)
  if string.find(attempts, attempt, 1, true) then return attempts end
  if #attempts + 1 < ATTEMPTS_MAX * ATTEMPT_LEN then return append_own_attempt(attempts, attempt) end
  if string.sub(attempts, 1, 13) ~= UNLISTED then
    attempts = UNLISTED .. string.sub(attempts, 14)
  elseif #attempts + 1 > ATTEMPTS_MAX * ATTEMPT_LEN then
    attempts = string.sub(attempts, 1, ATTEMPT_LEN) .. string.sub(attempts, 2 * ATTEMPT_LEN + 1)
  end
  return append_own_attempt(attempts, attempt)
end

-- Appends an attempt to the list of a waiter, as its newest attempt. If the list is full, attempts
-- of brokers that are gone are removed first. Returns nil if there is still no room.
local function add_waiter_attempt(attempts, attempt)
  if string.find(attempts, attempt, 1, true) then return attempts end
  if #attempts + 1 >= ATTEMPTS_MAX * ATTEMPT_LEN then
    local left = {}
    for known in string.gmatch(attempts, '[^,]+') do
      local _, is_gone = broker_liveness(broker_of(known), 0)
      if not is_gone then left[#left + 1] = known end
    end
    if #left == ATTEMPTS_MAX then return nil end
    attempts = table.concat(left, ',')
  end
  return append_own_attempt(attempts, attempt)
end

-- Returns the list without the attempt, or nil if the list does not contain it.
local function remove_attempt(attempts, attempt)
  local at = string.find(attempts, attempt, 1, true)
  if not at then return nil end
  local left = string.sub(attempts, 1, at - 1) .. string.sub(attempts, at + ATTEMPT_LEN)
  return string.sub(left, -1) == ',' and string.sub(left, 1, -2) or left
end

local function touch_queue()
  queue.heard, queue.ms, is_queue_touched = silence_clock(), now, true
  changed['b:' .. broker_id] = queue.ms .. '|' .. queue.heard
  if not string.find(queue.brokers, broker_id, 1, true) then queue.brokers = queue.brokers .. broker_id end
end

-- Handles a repeated call of a waiter: it keeps its queue position and now belongs to this broker.
local function requeue(position, w, again, attempts, stream)
  w.attempts, w.passed = attempts, 0
  w.until_ms, w.stream = math.max(w.until_ms, again.until_ms), stream
  queue.until_ms = math.max(queue.until_ms, w.until_ms)
  write_waiter(position, w)
  touch_queue()
end

local function enqueue(w)
  touch_queue()
  queue.tail, queue.n, is_queue_touched = queue.tail + 1, queue.n + 1, true
  queue.until_ms = math.max(queue.until_ms, w.until_ms)
  write_waiter(queue.tail, w)
  record_change('QUEUED', w)
  changed['r:' .. w.request] = queue.tail
end
