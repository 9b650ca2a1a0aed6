-- The attempts of a waiter that count for a call from there. A client that has moved from one stream to another
-- has left the older one; a unary call may be open still.
local function attempts_at(there, w)
  return (w.stream == '' or stream_of(w.stream) == stream_of(there)) and w.attempts or ''
end

-- Acquire: grants the lock, or joins its queue, or says why not. A repeat finds what an earlier
-- attempt got, and renews the lease.
-- limit: 0 is the one in use. terms: '' or 'max_hold_ms,lock_delay_ms,disconnect_grace_ms,added': 0 for
-- none, '' for no grace; added is 1 where the lease is there already. under: '' makes a lease, '+' adds
-- to one, a token enters. stream: '' or 'epoch.number'. What follows makes it a vote, or is ''
local function verb(lease, request, arguments, attempt, ttl_ms, wait_ms, rejoin, queue_max, owner, weight,
  limit, terms, under, stream, ...)
  local wait = tonumber(wait_ms)
  limit, stream = tonumber(limit), stream == '' and '' or me .. '.' .. stream
  propose(...)
  if now > not_after then return { 'LATE', now } end
  local r, l, was_released, was_expired, tombstones =
    load('r:' .. request, 'l:' .. lease, 'z:' .. lease, 'e:' .. lease, 'a')
  known['r:' .. request], known['l:' .. lease], known.a = r, l, tombstones
  expire()
  if tombstones and is_buried(attempt) then return reply('CANCELLED') end
  -- what a node that restarted still knows is not a vote
  if proposed and grants_in() ~= 0 then return refused_until(grants_in()) end
  local h, place = living(holder_by(request)), tonumber(r)
  if h and h.place and grants_in() ~= 0 then
    fall_back(h)
    h = nil
  end
  if h then
    local e = entry_of(h, request)
    if h.lease ~= lease or e.arguments ~= arguments then return reply('REUSED') end
    local there = moved_to(h.stream, stream)
    if not there then return reply('STALE') end
    if not announced(h) then return reply('ENDED') end
    if grants_in() ~= 0 then return refused_until(grants_in()) end
    put_on(h, there)
    set_attempts(h, e, attempts_add(e.attempts, attempt))
    if proposed then raise(h, e) end
    extend(h)
    return granted(h)
  end
  h = living(holder_of(lease))
  if tombstones and is_buried(request)
    or remembered(changed['e:' .. lease] or was_expired, expired, kept_expired)
    or under == '' and (h or remembered(was_released, released, kept_released))
    or under ~= '' and under ~= '+' and not h
      and (remembered(was_released, released, kept_released) or was_part(lease)) then
    return reply('ENDED')
  end
  local w = { lease = lease, request = request, arguments = arguments, ttl = ttl_ms, since = now,
    weight = weight, terms = terms, until_ms = now + wait, passed = 0, owner = owner,
    stream = stream, attempts = attempt .. '@' .. me }
  local waits, there = place and read_waiter(place)
  if waits then
    if waits.lease ~= lease or waits.arguments ~= arguments then return reply('REUSED') end
    there = moved_to(waits.stream, stream)
    if not there then return reply('STALE') end
  end
  -- a call in line enters what its lease got by another one meanwhile, or keeps its place
  local enters = h and not h.place and (under == '+' or under == h.token)
  if enters and not (waits and grants_in() ~= 0) then
    if stream_of(h.stream) ~= stream_of(stream) then return reply('STALE') end
    if grants_in() ~= 0 then return refused_until(grants_in()) end
    if waits then
      drop(place, request)
      w.attempts = attempts_add(attempts_at(stream, waits), attempt)
    end
    local refused = other_limit(limit) and 'MISMATCH' or enter(h, w)
    if not refused then return granted(h) end
    if waits then note('ABANDONED', waits) end
    return reply(refused, refused == 'MISMATCH' and limit_in_use() or nil)
  end
  if waits then
    if tonumber(weight) > holders.limit then
      drop(place, request)
      note('ABANDONED', waits)
      advance()
      return reply('MISMATCH', limit_in_use())
    end
    if wait > 0 then
      local attempts = attempts_add_waiting(attempts_at(there, waits), attempt)
      if not attempts then return reply('ATTEMPTS') end
      wait_again(place, waits, w, attempts, there)
    end
    advance()
    h = holder_by(request)
    -- it may have been dropped from the line just now
    return h and not h.place and granted(h) or held_or_queued(wait, changed['w:' .. place] ~= false and place or 0)
  end
  if under ~= '' and under ~= '+' then return reply('NOTFOUND') end

  local closed = grants_in()
  if closed < 0 and era_id ~= '' or closed ~= 0 and not (rejoin == '1' and wait > 0) then
    return refused_until(closed)
  end
  -- another request of the same lease may have been promised the lock
  local blocked = closed ~= 0 or advance() or holder_of(lease)
  local in_use = limit_in_use()
  if in_use == 0 then holders.limit = limit end
  if other_limit(limit) or tonumber(weight) > holders.limit then return reply('MISMATCH', in_use) end
  if proposed and tells == '2' then tell_me() end
  if not blocked and fits(weight) then return proposed and against() or granted(grant(w, nil, proposed)) end
  if wait > 0 and queue.n >= tonumber(queue_max) then return reply('FULL') end
  if wait > 0 then join(w) end
  if proposed and tells ~= '0' then tell_me() end
  return held_or_queued(wait, queue.tail)
end
