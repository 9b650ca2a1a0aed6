-- Cancel.

-- Returns the list without the attempt, or nil if the list does not contain it.
local function remove_attempt(attempts, attempt)
  local at = string.find(attempts, attempt, 1, true)
  if not at then return nil end
  local left = string.sub(attempts, 1, at - 1) .. string.sub(attempts, at + ATTEMPT_LEN)
  return string.sub(left, -1) == ',' and string.sub(left, 1, -2) or left
end

-- Cancel: cancels one attempt of a request. With its last attempt the request leaves the queue or
-- releases the lock. An attempt that has not arrived yet leaves a tombstone. notify: as for Release
local function cancel(request, attempt, notify)
  load('r:' .. request)
  local position = tonumber(field('r:' .. request))
  expire()
  local h = unexpired(holder_by(request))
  local e = h and entry_of(h, request)
  local w = not h and position and read_waiter(position)
  local left = e and remove_attempt(e.attempts, attempt) or w and remove_attempt(w.attempts, attempt)
  if not left then
    add_tombstone(attempt)
    return reply((e or w) and 'KEPT' or 'UNKNOWN')
  end
  if left ~= '' then
    if h then
      set_attempts(h, e, left)
      write_holder(h)
    else
      w.attempts = left
      write_waiter(position, w)
    end
    return reply('KEPT')
  end
  if h and h.entries ~= '' then
    remove_entry(h, e)
  else
    record_change(h and not h.position and 'RELEASED' or 'ABANDONED', h or w)
    if h then free_holder(h) else dequeue(position, request) end
  end
  advance()
  if notify == '1' then publish_release() end
  return reply(h and 'FREED' or 'DEQUEUED')
end

exports.cancel = cancel
