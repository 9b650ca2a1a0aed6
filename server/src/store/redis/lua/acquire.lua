-- Returns the attempts of a waiter that still count for a call from the stream `requested`. A
-- client that has moved to another stream has left the older one, but a unary call may still be
-- open.
local function attempts_on(requested, w)
  return (w.stream == '' or stream_of(w.stream) == stream_of(requested)) and w.attempts or ''
end

-- Acquire: grants the lock, adds the request to its queue, or rejects the request with a reason. A
-- repeated request receives what an earlier attempt was granted, and renews the lease.
--
-- limit: 0 for the limit in use. terms: '' or
-- 'max_hold_ms,lock_delay_ms,disconnect_grace_ms,added', with 0 for none and '' for no grace; added
-- is 1 if the lease already exists. under: '' creates a lease, '+' adds the lock to an existing
-- lease, a token re-enters that grant. stream: '' or 'epoch.number'. The arguments after it make
-- the command a vote, or are ''.
local function verb(lease, request, arguments, attempt, ttl_ms, wait_ms, rejoin, queue_max, owner, weight,
  limit, terms, under, stream, ...)
  local wait = tonumber(wait_ms)
  limit, stream = tonumber(limit), stream == '' and '' or broker_id .. '.' .. stream
  propose(...)
  if now > not_after then return { 'LATE', now } end
  local r, l, was_released, was_expired, tombstones =
    load('r:' .. request, 'l:' .. lease, 'z:' .. lease, 'e:' .. lease, 'a')
  known['r:' .. request], known['l:' .. lease], known.a = r, l, tombstones
  expire()
  if tombstones and has_tombstone(attempt) then return reply('CANCELLED') end
  -- grants that a restarted node still has must not count as votes
  if proposed and ms_until_grants() ~= 0 then return reject_until(ms_until_grants()) end
  local h, position = unexpired(holder_by(request)), tonumber(r)
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
    if ms_until_grants() ~= 0 then return reject_until(ms_until_grants()) end
    attach_to(h, requested)
    set_attempts(h, e, add_attempt(e.attempts, attempt))
    if proposed then raise_token(h, e) end
    extend(h)
    return granted(h)
  end
  h = unexpired(holder_of(lease))
  if tombstones and has_tombstone(request)
    or still_counts(changed['e:' .. lease] or was_expired, expired, expiry_counts)
    or under == '' and (h or still_counts(was_released, released, release_counts))
    or under ~= '' and under ~= '+' and not h
      and is_released_recently(lease, was_released) then
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
    if ms_until_grants() ~= 0 then return reject_until(ms_until_grants()) end
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
    return reject_until(closed)
  end
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
