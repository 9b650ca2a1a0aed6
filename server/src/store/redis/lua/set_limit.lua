-- SetLimit: fixes the limit of a semaphore, whatever its callers say.
-- Waiters that can never fit are dropped, and all brokers with waiters are told to ask again. A line
-- has at most 10,000 waiters but may have any number of holes: what is behind so many is dropped
-- when its turn comes.
local PLACES_MAX = 20000
local function verb(value)
  if now > not_after then return { 'LATE', now } end
  load()
  expire()
  local limit, previous, brokers, refused = tonumber(value), limit_in_use(), queue.brokers, false
  if previous == WHOLE then
    if next(changed) then save() end
    return { 'MISMATCH', now, 0, hand_offs }
  end
  holders.limit, set_limit = limit, limit
  for place = queue.head, math.min(queue.tail, queue.head + PLACES_MAX) do
    local w = read_waiter(place)
    if w and not w.slot and tonumber(w.weight) > limit then
      note('ABANDONED', w)
      drop(place, w.request)
      refused = true
    end
  end
  for at = 1, refused and #brokers or 0, 16 do
    tell(string.sub(brokers, at, at + 15), lock)
  end
  advance()
  save()
  return { 'SET', now, more, hand_offs, previous }
end
