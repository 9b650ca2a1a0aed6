-- Get: looks, without touching, and shows so many holders and waiters at most.
local function verb(holders_max, queue_max)
  load()
  local most, waiters_most, waiters, place, seen = tonumber(holders_max), tonumber(queue_max), {}, queue.head, 0
  while place <= queue.tail and #waiters < waiters_most and seen < 4 * SCAN_MAX do
    local w = read_waiter(place)
    if w and w.until_ms > now then waiters[#waiters + 1] = { place, w.since, w.until_ms - now, w.weight, w.owner } end
    place, seen = place + 1, seen + 1
  end
  if fence == 0 and queue.n == 0 then return { 'UNKNOWN', now, 0, {} } end
  local first, count = shown(most, holders.top) -- before closed_until is read
  return { 'STATE', now, 0, {}, fence, queue.n, math.max(closed_until - now, 0), holders.limit, waiters, first, count }
end
