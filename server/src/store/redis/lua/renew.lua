-- Renew: extends a lease, and claims a provisional hand-off. Never creates a lock and never
-- shortens an expiry.
--
-- ttl_ms: '' keeps the current ttl. is_delivered: '1' if the client has received the lease, '' if
-- that is not known
local function verb(lease, token, ttl_ms, via, is_delivered)
  if now > not_after then return { 'LATE', now } end
  local l, was_released, was_expired = load('l:' .. lease, 'z:' .. lease, 'e:' .. lease)
  known['l:' .. lease] = l
  expire()
  local h = unexpired(holder_of(lease))
  local is_closed = h and h.position and ms_until_grants() ~= 0
  if h and h.token == token and not is_closed then
    if is_on_other_stream(h, via) then
      if next(changed) then save() end
      return { 'ELSEWHERE', now, more, hand_offs }
    end
    if is_delivered == '1' then add_unlisted_attempt(h) end
    local extended = extend(h, ttl_ms ~= '' and ttl_ms)
    if extended or next(changed) then save() end
    if not extended then
      local tag, reason = end_reason(h)
      return { tag, now, more, hand_offs, reason }
    end
    return { 'EXTENDED', now, more, hand_offs, grant_fields(h) }
  end
  local tag, reason = ended_tag(h, lease, token, was_released, was_expired)
  if next(changed) then save() end
  return { tag, now, more, hand_offs, reason }
end
