-- SetLimit: fixes the limit of a semaphore, whatever limit its callers send. If the limit is
-- lowered, all brokers with waiters are notified to send acquire again. Waiters that can never fit
-- are rejected then, or after a touch of their broker while the lock has room.
--
-- value: 0 removes the limit; a lock in use keeps the limit until it is idle.
local function verb(value)
  if now > not_after then return { 'LATE', now } end
  load()
  expire()
  local limit, previous, brokers = tonumber(value), limit_in_use(), queue.brokers
  if limit == 0 then
    previous, set_limit = set_limit, 0
    advance()
    if previous > 0 or is_queue_touched or next(changed) then save() end
    return { 'SET', now, more, hand_offs, previous }
  end
  if previous == EXCLUSIVE_WEIGHT then
    if next(changed) then save() end
    return { 'MISMATCH', now, more, hand_offs }
  end
  holders.limit, set_limit = limit, limit
  for at = 1, limit < previous and #brokers or 0, 16 do
    publish(string.sub(brokers, at, at + 15), lock)
  end
  advance()
  save()
  return { 'SET', now, more, hand_offs, previous }
end
