-- Renew and Attach, which extend a lease and move it to another stream.

-- Renew: extends a lease, and claims a provisional hand-off. Never creates a lock and never
-- shortens an expiry.
--
-- ttl_ms: '' keeps the current ttl. is_delivered: '1' if the client has received the lease, '' if
-- that is not known
local function renew(lease, token, ttl_ms, via, is_delivered)
  if now > not_after then return { 'LATE', now } end
  local h = load_lease(lease)
  local is_closed = h and h.position and ms_until_grants() ~= 0
  if not h or h.token ~= token or is_closed then return reply(ended_tag(h, lease, token)) end
  if is_on_other_stream(h, via) then return reply('ELSEWHERE') end
  if ttl_ms ~= '' then h.ttl = ttl_ms end
  if not effective_ttl(h) then return reply(end_reason(h)) end
  if not fits_span(h) then return span_rejection() end
  if is_delivered == '1' then add_unlisted_attempt(h) end
  extend(h)
  return reply('EXTENDED', grant_fields(h))
end

-- Attach: moves a lease to a stream of this broker, without extending the lease. stream:
-- 'epoch.number'
local function attach(lease, token, stream)
  if now > not_after then return { 'LATE', now } end
  local h = load_lease(lease)
  if not h or h.token ~= token or h.position then return reply(ended_tag(h, lease, token)) end
  local requested = moved_to(h.stream, broker_id .. '.' .. stream)
  if not requested then return reply('STALE') end
  if not effective_ttl(h) then return reply(end_reason(h)) end
  -- the lease may have ended shortly after its stream broke, in a write that the store has lost
  if grace_of(h) ~= '' and ms_until_grants() ~= 0 then return era_rejection() end
  attach_to(h, requested)
  write_holder(h)
  return reply('ATTACHED', moved, grant_fields(h))
end
