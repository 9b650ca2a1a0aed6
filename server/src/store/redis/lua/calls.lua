-- What a call brings into a record: its attempts, its place in line, the touch of its broker.
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

local function touch_queue()
  queue.heard, queue.ms, touched_queue = heard_now(), now, true
  changed['b:' .. me] = queue.ms .. '|' .. queue.heard
  if not string.find(queue.brokers, me, 1, true) then queue.brokers = queue.brokers .. me end
end

-- A repeat of a call in line keeps its place, and belongs to this broker from now on.
local function wait_again(place, w, again, stream)
  w.attempts, w.passed = attempts_add(w.attempts, string.sub(again.attempts, 1, 13)), 0
  w.until_ms, w.stream = math.max(w.until_ms, again.until_ms), stream
  queue.until_ms = math.max(queue.until_ms, w.until_ms)
  write_waiter(place, w)
  touch_queue()
end

local function join(w)
  touch_queue()
  queue.tail, queue.n, touched_queue = queue.tail + 1, queue.n + 1, true
  queue.until_ms = math.max(queue.until_ms, w.until_ms)
  write_waiter(queue.tail, w)
  note('QUEUED', w)
  changed['r:' .. w.request] = queue.tail
end
