-- Release: gives a lease back and hands the lock to the next waiters in the same step.
-- ARGV 4..: lease, fencing_token
local lease, token = ARGV[4], ARGV[5]
local l, was_released, was_expired = load('l:' .. lease, 'z:' .. lease, 'e:' .. lease)
local tag = 'NOTFOUND'
expire()
local h = holder_of(lease, l)
if h then
  if h.token == token then
    tag = 'NOW'
    free(h)
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
