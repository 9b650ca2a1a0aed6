-- Revoke, SetLimit, Close and Open: the operator actions on a lock.

-- Revoke: revokes the lock of a lease, which cannot be renewed after its grace. The lock stays held
-- until the lease is released or expires. The broker of the lease's stream is notified.
--
-- delay, in ms: '' keeps the lease's own. force: '' revokes as above, '?' only returns what a
-- revocation would affect, '!' frees the lock at once. notify: as for Release
local function revoke(lease, grace_ms, delay, force, reason, notify)
  local grace = tonumber(grace_ms)
  if now > not_after then return { 'LATE', now } end
  local h = load_lease(lease)
  if not h or h.position then return reply(h and 'NOTFOUND' or ended_lease_tag(lease)) end
  local holder = { h.lease, h.token, h.since, h.expires - now, h.weight, h.owner }
  local waiting, on = queue.n, h.stream
  if force ~= '?' then
    local own, terms, flags = string.match(h.terms ~= '' and h.terms or '0,0,0,,0', '^(%d+)(,.*,)(%d)$')
    local left = math.max(now + grace - h.since, 1)
    if own ~= '0' then left = math.min(left, own) end
    if delay ~= '' then terms = string.gsub(terms, '%d+', delay, 1) end
    flags = flags % 2 + REVOKED + ((delay ~= '' or has_flag(h, DELAYS_ON_RELEASE)) and DELAYS_ON_RELEASE or 0)
    h.terms = string.format('%.0f', left) .. terms .. flags
    changed['k:' .. lease] = reason
    if force == '!' then
      h.expires = now
      end_lease(h)
    else
      write_holder(h)
    end
    local broker = string.match(on, '^%w+')
    if broker and broker ~= broker_id then
      publish(broker, table.concat({ lock, lease, '!' .. on .. '!' .. grace_ms, reason }, '\n'))
    end
    advance()
    if notify == '1' then publish_release() end
  end
  return reply('TAKEN', holder, holders.limit, waiting, on)
end

-- SetLimit: fixes the limit of a semaphore, whatever limit its callers send. If the limit is
-- lowered, all brokers with waiters are notified to send acquire again. Waiters that can never fit
-- are rejected then, or after a touch of their broker while the lock has room.
--
-- value: 0 removes the limit; a lock in use keeps the limit until it is idle.
local function set_lock_limit(value)
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
  if previous == EXCLUSIVE_WEIGHT then return reply('MISMATCH') end
  holders.limit, set_limit = limit, limit
  for at = 1, limit < previous and #brokers or 0, 16 do
    publish(string.sub(brokers, at, at + 15), lock)
  end
  advance()
  save()
  return { 'SET', now, more, hand_offs, previous }
end

-- Close and Open: close the lock until a time, or end its closure, whatever the cause. until_ms: ''
-- to open the lock. notify: as for Release
local function set_closure(until_ms, operator, notify)
  if now > not_after then return { 'LATE', now } end
  load()
  if ms_until_grants() < 0 then return era_rejection() end
  expire()
  if until_ms ~= '' then
    close('OPERATOR', tonumber(until_ms), operator)
  end
  local closure = recorded_closure()
  if until_ms == '' and closed_until > 0 then
    if closure[1] then record_closure('OPENED', closed_until, closure[4]) end
    closed_until, changed.c = 0, false
  end
  advance()
  if notify == '1' then publish_release() end
  return reply('CLOSURE', closure)
end

exports.revoke, exports.set_lock_limit, exports.set_closure = revoke, set_lock_limit, set_closure
