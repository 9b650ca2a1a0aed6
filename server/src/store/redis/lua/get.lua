-- Get: reads the lock without writing, and returns at most `holders_max` holders and `queue_max`
-- waiters.
local function verb(holders_max, queue_max)
  load()
  local most, waiters_most, waiters, position, seen = tonumber(holders_max), tonumber(queue_max), {}, queue.head, 0
  while position <= queue.tail and #waiters < waiters_most and seen < 4 * SCAN_MAX do
    local w = read_waiter(position)
    if w and w.until_ms > now then
      waiters[#waiters + 1] = { position, w.since, w.until_ms - now, w.weight, w.owner }
    end
    position, seen = position + 1, seen + 1
  end
  if last_token == 0 and queue.n == 0 then return { 'UNKNOWN', now, 0, {} } end
  local first, count = holders_info(most, holders.top) -- before lock_delay_until is read
  return { 'STATE', now, 0, {}, last_token, queue.n, math.max(lock_delay_until - now, 0), holders.limit, waiters,
    first, count }
end
