-- Revoke: revokes the lock of a lease, which cannot be renewed after its grace. The lock stays held
-- until the lease is released or expires. The broker of the lease's stream is notified.
--
-- delay, in ms: '' keeps the lease's own. force: '' revokes as above, '?' only returns what a
-- revocation would affect, '!' frees the lock at once. notify: as for Release
local function verb(lease, grace_ms, delay, force, reason, notify)
  local grace = tonumber(grace_ms)
  if now > not_after then return { 'LATE', now } end
  local l, was_released, was_expired = load('l:' .. lease, 'z:' .. lease, 'e:' .. lease)
  known['l:' .. lease] = l
  expire()
  local h = unexpired(holder_of(lease))
  if not h or h.position then
    local tag = h and 'NOTFOUND' or ended_lease_tag(lease, was_released, was_expired)
    if next(changed) then save() end
    return { tag, now, more, hand_offs }
  end
  local holder = { h.lease, h.token, h.since, h.expires - now, h.weight, h.owner }
  local waiting, on = queue.n, h.stream
  if force ~= '?' then
    local own, terms, flags = string.match(h.terms ~= '' and h.terms or '0,0,,0', '^(%d+)(,.*,)(%d)$')
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
  if next(changed) or is_queue_touched then save() end
  return { 'TAKEN', now, more, hand_offs, holder, holders.limit, waiting, on }
end
