-- Attach, which moves a lease to another stream.

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

exports.attach = attach
