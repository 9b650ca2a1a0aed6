-- Acquire.

-- Returns true if the lock is in use with another limit.
local function has_other_limit(limit)
  local in_use = limit_in_use()
  if set_limit > 0 then return limit == EXCLUSIVE_WEIGHT end
  return in_use > 0 and limit ~= in_use and (limit > 0 or in_use == EXCLUSIVE_WEIGHT)
end

local function granted(h) return reply('GRANTED', moved, grant_fields(h)) end

-- Acquire: grants the lock, adds the request to its queue, or rejects the request with a reason. A
-- repeated request receives what an earlier attempt was granted, and renews the lease.
--
-- limit: 0 for the limit in use. terms: '' or
-- 'max_hold_ms,lock_delay_ms,at_least_ms,disconnect_grace_ms,added', with 0 for none and '' for no
-- grace; added is 1 if the lease already exists. under: '' creates a lease, '+' adds the lock to an
-- existing lease, a token re-enters that grant. stream: '' or 'epoch.number'.
--
-- The arguments after it make the command a vote (vote.lua). proposed: the token, 0 for no new grant,
-- or '' if this node decides alone. notify: when to notify this broker that the lock is free (0:
-- never, 1: if it is not granted now, 2: in any case).
local function acquire(lease, request, arguments, attempt, ttl_ms, wait_ms, rejoin, queue_max, owner, weight,
  limit, terms, under, stream, proposed, max_clock_skew_ms, is_raise, notify)
  local wait = tonumber(wait_ms)
  limit, stream = tonumber(limit), stream == '' and '' or broker_id .. '.' .. stream
  proposed = tonumber(proposed)
  if proposed then rare().propose(proposed, max_clock_skew_ms, is_raise) end
  if now > not_after then return { 'LATE', now } end
  load('r:' .. request, 'l:' .. lease, 'z:' .. lease, 'e:' .. lease, 'a')
  local position = tonumber(field('r:' .. request))
  expire()
  local tombstones = field('a')
  if tombstones and rare().has_tombstone(attempt) then return reply('CANCELLED') end
  -- grants that a restarted node still has must not count as votes
  if proposed and ms_until_grants() ~= 0 then return rare().era_rejection() end
  local h = unexpired(holder_by(request))
  if h and h.position and ms_until_grants() ~= 0 then
    rare().lapse(h)
    h = nil
  end
  if h then
    local e = rare().entry_of(h, request)
    if h.lease ~= lease or e.arguments ~= arguments then return reply('REUSED') end
    local requested = rare().moved_to(h.stream, stream)
    if not requested then return reply('STALE') end
    if not effective_ttl(h) then return reply('ENDED') end
    if ms_until_grants() ~= 0 then return rare().era_rejection() end
    if not fits_span(h) then return rare().span_rejection() end
    rare().attach_to(h, requested)
    rare().set_attempts(h, e, rare().add_attempt(e.attempts, attempt))
    if proposed then rare().raise_token(h, e) end
    extend(h)
    return granted(h)
  end
  h = unexpired(holder_of(lease))
  if tombstones and rare().has_tombstone(request)
    or field('e:' .. lease) and rare().was_expired(lease)
    or under == '' and (h or field('z:' .. lease) and rare().is_newly_released(lease))
    or under ~= '' and under ~= '+' and not h and rare().was_released(lease) then
    return reply('ENDED')
  end
  local w = { lease = lease, request = request, arguments = arguments, ttl = ttl_ms, since = now,
    weight = weight, terms = terms, until_ms = now + wait, passed = 0, owner = owner,
    stream = stream, attempts = attempt .. '@' .. broker_id }
  local waits, requested = position and waiting().read_waiter(position)
  if waits then
    if waits.lease ~= lease or waits.arguments ~= arguments then return reply('REUSED') end
    requested = rare().moved_to(waits.stream, stream)
    if not requested then return reply('STALE') end
  end
  -- a waiter re-enters a lock that its lease has acquired by another call, or keeps its queue
  -- position
  local enters = h and not h.position and (under == '+' or under == h.token)
  if enters and not (waits and ms_until_grants() ~= 0) then
    if stream_of(h.stream) ~= stream_of(stream) then return reply('STALE') end
    if ms_until_grants() ~= 0 then return rare().era_rejection() end
    if not fits_span(h) then return rare().span_rejection() end
    if waits then
      waiting().dequeue(position, request)
      w.attempts = rare().add_attempt(rare().attempts_on(stream, waits), attempt)
    end
    local refused = has_other_limit(limit) and 'MISMATCH' or rare().reenter(h, w)
    if not refused then return granted(h) end
    if waits then waiting().record_change('ABANDONED', waits) end
    return reply(refused, refused == 'MISMATCH' and limit_in_use() or nil)
  end
  if waits then
    if tonumber(weight) > holders.limit then
      waiting().dequeue(position, request)
      waiting().record_change('ABANDONED', waits)
      advance()
      return reply('MISMATCH', limit_in_use())
    end
    if not fits_span(w) then return rare().span_rejection() end
    if wait > 0 then
      local attempts = rare().add_waiter_attempt(rare().attempts_on(requested, waits), attempt)
      if not attempts then return reply('ATTEMPTS') end
      waiting().requeue(position, waits, w, attempts, requested)
    end
    advance()
    h = holder_by(request)
    -- the waiter may have been dropped from the queue by advance()
    if h and not h.position then return granted(h) end
    return waiting().held_or_queued(wait, changed['w:' .. position] ~= false and position or 0)
  end
  if under ~= '' and under ~= '+' then return reply('NOTFOUND') end

  local closed = ms_until_grants()
  if closed < 0 and era_id ~= '' or closed ~= 0 and not (rejoin == '1' and wait > 0) then
    return rare().era_rejection()
  end
  if not fits_span(w) then return rare().span_rejection() end
  -- advance() may have handed the lock to another request of the same lease
  local blocked = closed ~= 0 or advance() or holder_of(lease)
  local in_use = limit_in_use()
  if in_use == 0 then holders.limit = limit end
  if has_other_limit(limit) or tonumber(weight) > holders.limit then return reply('MISMATCH', in_use) end
  if proposed and notify == '2' then rare().subscribe_release() end
  if not blocked and fits(weight) then return proposed and rare().vote_objection() or granted(grant(w, nil, proposed)) end
  if wait > 0 and queue.n >= tonumber(queue_max) then return reply('FULL') end
  if wait > 0 then waiting().enqueue(w) end
  if proposed and notify ~= '0' then rare().subscribe_release() end
  return waiting().held_or_queued(wait, queue.tail)
end
