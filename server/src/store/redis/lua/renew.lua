-- Renew, which extends a lease.

-- Renew: extends a lease, and claims a provisional hand-off. Never creates a lock and never
-- shortens an expiry.
--
-- ttl_ms: '' keeps the current ttl. is_delivered: '1' if the client has received the lease, '' if
-- that is not known
local function renew(lease, token, ttl_ms, via, is_delivered)
  if now > not_after then return { 'LATE', now } end
  local h = load_lease(lease)
  local is_closed = h and h.position and ms_until_grants() ~= 0
  if not h or h.token ~= token or is_closed then return reply(rare().ended_tag(h, lease, token)) end
  if is_on_other_stream(h.stream, via) then return reply('ELSEWHERE') end
  if ttl_ms ~= '' then h.ttl = ttl_ms end
  if not effective_ttl(h) then return reply(rare().end_reason(h)) end
  if not fits_span(h) then return rare().span_rejection() end
  if is_delivered == '1' then rare().add_unlisted_attempt(h) end
  extend(h)
  return reply('EXTENDED', grant_fields(h))
end
