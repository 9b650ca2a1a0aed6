-- Get and Check: the verbs that only read the lock.

-- Get: reads the lock without writing, and returns at most `holders_max` holders and `queue_max`
-- waiters.
local function get(holders_max, queue_max)
  load()
  local most, waiters_most, waiters, position, seen = tonumber(holders_max), tonumber(queue_max), {}, queue.head, 0
  while position <= queue.tail and #waiters < waiters_most and seen < 4 * SCAN_MAX do
    local w = read_waiter(position)
    if w and w.until_ms > now then
      waiters[#waiters + 1] = { position, w.since, w.until_ms - now, w.weight, w.owner }
    end
    position, seen = position + 1, seen + 1
  end
  if last_token == 0 and queue.n == 0 and closed_until == 0 and set_limit == 0 then return reply('UNKNOWN') end
  local closure, latest = recorded_closure(), closed_until
  local first, count, used = holders_info(most, holders.top, function(h)
    close_after(h, h.expires, function(cause, until_ms, owner)
      if until_ms > latest then closure, latest = closure_info(cause, until_ms, owner), until_ms end
    end)
  end)
  return reply('STATE', last_token, queue.n, closure, holders.limit, set_limit, waiters, first, count, used)
end

-- Check: returns whether a token is that of a live lease, without writing. A lease that may have
-- ended before the store lost data is not reported as live.
local function check(token)
  load()
  if last_token == 0 then return reply('UNKNOWN') end
  read_holders(1, holders.top)
  for slot = 1, holders.top do
    local h = holder_at(slot)
    if h and not h.position and h.token == token and h.expires > now then
      if ms_until_grants() ~= 0 then return era_rejection() end
      return reply('LIVE', h.expires - now)
    end
  end
  return reply('STALE', last_token)
end

exports.get, exports.check = get, check
