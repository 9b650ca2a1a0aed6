-- What a call brings into a record: its attempts, its place in line, the touch of its broker.
-- The name of an attempt that the list of a holder had no room for. Its answer may have been delivered:
-- no cancel names it, so none frees the lock any more.
local UNLISTED = '0000000000000'

local function attempt_of_me(attempts, attempt)
  return (attempts == '' and '' or attempts .. ',') .. attempt .. '@' .. me
end

-- Adds a newest attempt to those of a holder.
local function attempts_add(attempts, attempt)
  if string.find(attempts, attempt, 1, true) then return attempts end
  if #attempts + 1 < ATTEMPTS_MAX * ATTEMPT_LEN then return attempt_of_me(attempts, attempt) end
  if string.sub(attempts, 1, 13) ~= UNLISTED then
    attempts = UNLISTED .. string.sub(attempts, 14)
  elseif #attempts + 1 > ATTEMPTS_MAX * ATTEMPT_LEN then
    attempts = string.sub(attempts, 1, ATTEMPT_LEN) .. string.sub(attempts, 2 * ATTEMPT_LEN + 1)
  end
  return attempt_of_me(attempts, attempt)
end

-- Adds a newest attempt to those of a waiter. The attempts of brokers that are gone make room; nil if there
-- is none.
local function attempts_add_waiting(attempts, attempt)
  if string.find(attempts, attempt, 1, true) then return attempts end
  if #attempts + 1 >= ATTEMPTS_MAX * ATTEMPT_LEN then
    local left = {}
    for known in string.gmatch(attempts, '[^,]+') do
      local _, is_gone = presence(broker_of(known), 0)
      if not is_gone then left[#left + 1] = known end
    end
    if #left == ATTEMPTS_MAX then return nil end
    attempts = table.concat(left, ',')
  end
  return attempt_of_me(attempts, attempt)
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
local function wait_again(place, w, again, attempts, stream)
  w.attempts, w.passed = attempts, 0
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
