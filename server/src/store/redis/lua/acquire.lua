-- Acquire, and its steps: attempts, waiting in the queue, re-entry, and the replies.

local function has_tombstone(id)
  local tombstones = field('a')
  local until_ms = tombstones and string.match(tombstones, '%f[%w]' .. id .. '|(%d+)')
  return until_ms and tonumber(until_ms) > now
end

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

-- Handles a repeated call of a waiter: it keeps its queue position and now belongs to this broker.
local function requeue(position, w, again, attempts, stream)
  w.attempts, w.passed = attempts, 0
  w.until_ms, w.stream = math.max(w.until_ms, again.until_ms), stream
  queue.until_ms = math.max(queue.until_ms, w.until_ms)
  write_waiter(position, w)
  touch_queue()
end

local function enqueue(w)
  touch_queue()
  queue.tail, queue.n, is_queue_touched = queue.tail + 1, queue.n + 1, true
  queue.until_ms = math.max(queue.until_ms, w.until_ms)
  write_waiter(queue.tail, w)
  record_change('QUEUED', w)
  changed['r:' .. w.request] = queue.tail
end

-- Returns true if the lock is in use with another limit.
local function has_other_limit(limit)
  local in_use = limit_in_use()
  if set_limit > 0 then return limit == EXCLUSIVE_WEIGHT end
  return in_use > 0 and limit ~= in_use and (limit > 0 or in_use == EXCLUSIVE_WEIGHT)
end

-- Re-enters the lock for the lease that holds it, which renews the lease. Returns nil, or the tag
-- of the rejection.
local function reenter(h, e)
  if tonumber(e.weight) > tonumber(h.weight) then return 'UPGRADE' end
  if not effective_ttl(h) then return 'ENDED' end
  if hold_count(h) >= ENTRIES_MAX then return 'ENTRIES' end
  h.entries = h.entries .. entry_text(e)
  changed['r:' .. e.request] = '@' .. h.slot
  extend(h)
end

local function granted(h) return reply('GRANTED', moved, grant_fields(h)) end

local function held_or_queued(wait, position)
  changed.v = SCHEMA -- so that a record without a TTL gets one even if nothing changed
  if wait > 0 then
    return reply('QUEUED', next_event(), position, position == queue.tail and queue.n or 0, last_token)
  end
  -- a holder that has expired closes the lock when a command ends it
  local list = holders_info(5, 16, function() end)
  return reply('HELD', queue.n, recorded_closure(), holders.limit, list)
end

-- Acquire: grants the lock, adds the request to its queue, or rejects the request with a reason. A
-- repeated request receives what an earlier attempt was granted, and renews the lease.
--
-- limit: 0 for the limit in use. terms: '' or
-- 'max_hold_ms,lock_delay_ms,at_least_ms,disconnect_grace_ms,added', with 0 for none and '' for no
-- grace; added is 1 if the lease already exists. under: '' creates a lease, '+' adds the lock to an
-- existing lease, a token re-enters that grant. stream: '' or 'epoch.number'. The arguments after it
-- make the command a vote, or are ''.
local function acquire(lease, request, arguments, attempt, ttl_ms, wait_ms, rejoin, queue_max, owner, weight,
  limit, terms, under, stream, ...)
  local wait = tonumber(wait_ms)
  limit, stream = tonumber(limit), stream == '' and '' or broker_id .. '.' .. stream
  propose(...)
  if now > not_after then return { 'LATE', now } end
  load('r:' .. request, 'l:' .. lease, 'z:' .. lease, 'e:' .. lease, 'a')
  local position = tonumber(field('r:' .. request))
  expire()
  if has_tombstone(attempt) then return reply('CANCELLED') end
  -- grants that a restarted node still has must not count as votes
  if proposed and ms_until_grants() ~= 0 then return era_rejection() end
  local h = unexpired(holder_by(request))
  if h and h.position and ms_until_grants() ~= 0 then
    lapse(h)
    h = nil
  end
  if h then
    local e = entry_of(h, request)
    if h.lease ~= lease or e.arguments ~= arguments then return reply('REUSED') end
    local requested = moved_to(h.stream, stream)
    if not requested then return reply('STALE') end
    if not effective_ttl(h) then return reply('ENDED') end
    if ms_until_grants() ~= 0 then return era_rejection() end
    if not fits_span(h) then return span_rejection() end
    attach_to(h, requested)
    set_attempts(h, e, add_attempt(e.attempts, attempt))
    if proposed then raise_token(h, e) end
    extend(h)
    return granted(h)
  end
  h = unexpired(holder_of(lease))
  if has_tombstone(request)
    or was_expired(lease)
    or under == '' and (h or is_newly_released(lease))
    or under ~= '' and under ~= '+' and not h and was_released(lease) then
    return reply('ENDED')
  end
  local w = { lease = lease, request = request, arguments = arguments, ttl = ttl_ms, since = now,
    weight = weight, terms = terms, until_ms = now + wait, passed = 0, owner = owner,
    stream = stream, attempts = attempt .. '@' .. broker_id }
  local waits, requested = position and read_waiter(position)
  if waits then
    if waits.lease ~= lease or waits.arguments ~= arguments then return reply('REUSED') end
    requested = moved_to(waits.stream, stream)
    if not requested then return reply('STALE') end
  end
  -- a waiter re-enters a lock that its lease has acquired by another call, or keeps its queue
  -- position
  local enters = h and not h.position and (under == '+' or under == h.token)
  if enters and not (waits and ms_until_grants() ~= 0) then
    if stream_of(h.stream) ~= stream_of(stream) then return reply('STALE') end
    if ms_until_grants() ~= 0 then return era_rejection() end
    if not fits_span(h) then return span_rejection() end
    if waits then
      dequeue(position, request)
      w.attempts = add_attempt(attempts_on(stream, waits), attempt)
    end
    local refused = has_other_limit(limit) and 'MISMATCH' or reenter(h, w)
    if not refused then return granted(h) end
    if waits then record_change('ABANDONED', waits) end
    return reply(refused, refused == 'MISMATCH' and limit_in_use() or nil)
  end
  if waits then
    if tonumber(weight) > holders.limit then
      dequeue(position, request)
      record_change('ABANDONED', waits)
      advance()
      return reply('MISMATCH', limit_in_use())
    end
    if not fits_span(w) then return span_rejection() end
    if wait > 0 then
      local attempts = add_waiter_attempt(attempts_on(requested, waits), attempt)
      if not attempts then return reply('ATTEMPTS') end
      requeue(position, waits, w, attempts, requested)
    end
    advance()
    h = holder_by(request)
    -- the waiter may have been dropped from the queue by advance()
    if h and not h.position then return granted(h) end
    return held_or_queued(wait, changed['w:' .. position] ~= false and position or 0)
  end
  if under ~= '' and under ~= '+' then return reply('NOTFOUND') end

  local closed = ms_until_grants()
  if closed < 0 and era_id ~= '' or closed ~= 0 and not (rejoin == '1' and wait > 0) then
    return era_rejection()
  end
  if not fits_span(w) then return span_rejection() end
  -- advance() may have handed the lock to another request of the same lease
  local blocked = closed ~= 0 or advance() or holder_of(lease)
  local in_use = limit_in_use()
  if in_use == 0 then holders.limit = limit end
  if has_other_limit(limit) or tonumber(weight) > holders.limit then return reply('MISMATCH', in_use) end
  if proposed and notify == '2' then subscribe_release() end
  if not blocked and fits(weight) then return proposed and vote_objection() or granted(grant(w, nil, proposed)) end
  if wait > 0 and queue.n >= tonumber(queue_max) then return reply('FULL') end
  if wait > 0 then enqueue(w) end
  if proposed and notify ~= '0' then subscribe_release() end
  return held_or_queued(wait, queue.tail)
end
