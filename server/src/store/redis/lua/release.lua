-- Release: gives a lease back and hands the lock to the next waiter in the same step.
-- ARGV 4..: lease, fencing_token
local lease, token = ARGV[4], tonumber(ARGV[5])
local was_released, was_expired = load('z:' .. lease, 'e:' .. lease)
local tag = 'NOTFOUND'
if holder and holder.lease == lease and holder.token == token then
  if expire() then
    if remembered(changed['e:' .. lease] or was_expired, expired, kept_expired) then tag = 'EXPIRED' end
  else
    tag = 'NOW'
    free()
    remember('z', released, lease, now, kept_released)
  end
  advance()
  save()
  return { tag, now, more, hand_offs }
end
expire()
if holder and holder.lease == lease then
  tag = 'NOTFOUND'
elseif remembered(was_released, released, kept_released) then
  tag = 'ALREADY'
elseif remembered(changed['e:' .. lease] or was_expired, expired, kept_expired) then
  tag = 'EXPIRED'
end
return { tag, now, more, hand_offs }
