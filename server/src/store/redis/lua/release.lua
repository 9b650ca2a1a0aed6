-- Release: gives a lease back and hands the lock to the next waiter in the same step.
-- ARGV 4..: lease, fencing_token
local lease, token = ARGV[4], tonumber(ARGV[5])
local was_released, was_expired = load('z:' .. lease, 'e:' .. lease)
local tag = 'NOTFOUND'
expire()
if holder and holder.lease == lease then
  if holder.token == token then
    tag = 'NOW'
    free()
    remember('z', released, lease, now, kept_released)
  end
elseif remembered(was_released, released, kept_released) then
  tag = 'ALREADY'
elseif remembered(changed['e:' .. lease] or was_expired, expired, kept_expired) then
  tag = 'EXPIRED'
end
advance()
if next(changed) or touched_queue then save() end
return { tag, now, more, hand_offs }
