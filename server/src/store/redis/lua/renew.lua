-- Renew: extends a lease, and claims a provisional hand-off. Makes no lock and shortens none.
-- ARGV 4..: lease, fencing_token, ttl_ms ('' keeps the present one)
local lease, token = ARGV[4], tonumber(ARGV[5])
if now > not_after then return { 'LATE', now } end
local was_released, was_expired = load('z:' .. lease, 'e:' .. lease)
expire()
if holder and holder.lease == lease and holder.token == token then
  extend(tonumber(ARGV[6]))
  save()
  return { 'EXTENDED', now, more, hand_offs, holder.token, holder.ttl, holder.since }
end
local tag = 'NOTFOUND'
if holder and holder.lease == lease then
  tag = 'NOTFOUND'
elseif remembered(was_released, released, kept_released) then
  tag = 'RELEASED'
elseif remembered(changed['e:' .. lease] or was_expired, expired, kept_expired) then
  tag = 'EXPIRED'
end
if next(changed) then save() end
return { tag, now, more, hand_offs }
