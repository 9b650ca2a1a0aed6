-- SetLimit: fixes the limit of a semaphore, whatever its callers say. Under a lower one all brokers with
-- waiters are told to ask again: those that can never fit are refused then, or when their turn comes.
-- value: 0 removes the limit; a lock in use keeps it until it is idle.
local function verb(value)
  if now > not_after then return { 'LATE', now } end
  load()
  expire()
  local limit, previous, brokers = tonumber(value), limit_in_use(), queue.brokers
  if limit == 0 then
    previous, set_limit = set_limit, 0
    advance()
    if previous > 0 or touched_queue or next(changed) then save() end
    return { 'SET', now, more, hand_offs, previous }
  end
  if previous == WHOLE then
    if next(changed) then save() end
    return { 'MISMATCH', now, more, hand_offs }
  end
  holders.limit, set_limit = limit, limit
  for at = 1, limit < previous and #brokers or 0, 16 do
    tell(string.sub(brokers, at, at + 15), lock)
  end
  advance()
  save()
  return { 'SET', now, more, hand_offs, previous }
end
