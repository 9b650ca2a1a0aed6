-- Attempts of a request: the calls by which its client repeats it.

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

-- Returns the attempts of a waiter that still count for a call from the stream `requested`. A
-- client that has moved to another stream has left the older one, but a unary call may still be
-- open.
local function attempts_on(requested, w)
  return (w.stream == '' or stream_of(w.stream) == stream_of(requested)) and w.attempts or ''
end

exports.add_attempt, exports.add_waiter_attempt, exports.attempts_on = add_attempt, add_waiter_attempt, attempts_on
