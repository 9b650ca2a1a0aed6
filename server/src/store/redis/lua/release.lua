-- Release: gives a lease back, or one of its entries, and hands the lock to the next waiters in the
-- same step.
-- ARGV 4..: lease, fencing_token, request of the entry ('' for all)
local lease, token, request = ARGV[4], ARGV[5], ARGV[6]
local l, was_released, was_expired = load('l:' .. lease, 'z:' .. lease, 'e:' .. lease)
known['l:' .. lease] = l
local tag, left = 'NOTFOUND', 0
expire()
local h = holder_of(lease)
if h and h.token == token then
  local e = request ~= '' and entry_of(h, request)
  if request ~= '' then bury(request) end
  if request ~= '' and not e then
    tag, left = 'ALREADY', hold_count(h)
  elseif e and h.entries ~= '' then
    leave(h, e)
    tag, left = 'NOW', hold_count(h)
  else
    -- repeats of the call that made the lease are refused by the memory of released leases
    if h.entries ~= '' or h.terms ~= '' and string.find(h.terms, ',1$') then
      bury(h.request)
      for other in string.gmatch(h.entries, ENTRY) do bury(other) end
    end
    tag = 'NOW'
    free(h)
    remember('z', released, lease, now, kept_released)
  end
elseif h then
  tag = 'NOTFOUND'
elseif remembered(was_released, released, kept_released) then
  tag = 'ALREADY'
elseif remembered(changed['e:' .. lease] or was_expired, expired, kept_expired) then
  tag = 'EXPIRED'
end
advance()
if next(changed) or touched_queue then save() end
return { tag, now, more, hand_offs, left }
