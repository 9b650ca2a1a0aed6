-- Attach: moves a lease to a stream of this broker, without extending the lease. stream:
-- 'epoch.number'
local function verb(lease, token, stream)
  local requested = broker_id .. '.' .. stream
  if now > not_after then return { 'LATE', now } end
  local l, was_released, was_expired = load('l:' .. lease, 'z:' .. lease, 'e:' .. lease)
  known['l:' .. lease] = l
  expire()
  local h, tag, reason = unexpired(holder_of(lease))
  if h and h.token == token and not h.position then
    requested = moved_to(h.stream, requested)
    tag = not requested and 'STALE' or effective_ttl(h) and 'ATTACHED'
    if not tag then tag, reason = end_reason(h) end
    -- the lease may have ended shortly after its stream broke, in a write that the store has lost
    if tag == 'ATTACHED' and grace_of(h) ~= '' and ms_until_grants() ~= 0 then
      return reject_until(ms_until_grants())
    end
    if tag == 'ATTACHED' then
      attach_to(h, requested)
      write_holder(h)
    end
  else
    tag, reason = ended_tag(h, lease, token, was_released, was_expired)
  end
  if next(changed) then save() end
  if tag == 'ATTACHED' then return { tag, now, more, hand_offs, moved, grant_fields(h) } end
  return { tag, now, more, hand_offs, reason }
end
