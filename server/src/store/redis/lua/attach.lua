-- Attach: puts a lease on a stream of this broker, without extending it. stream: 'epoch.number'
local function verb(lease, token, stream)
  local there = me .. '.' .. stream
  if now > not_after then return { 'LATE', now } end
  local l, was_released, was_expired = load('l:' .. lease, 'z:' .. lease, 'e:' .. lease)
  known['l:' .. lease] = l
  expire()
  local h, tag, reason = living(holder_of(lease)), 'NOTFOUND'
  if h and h.token == token and not h.place then
    there = moved_to(h.stream, there)
    tag = not there and 'STALE' or announced(h) and 'ATTACHED'
    if not tag then tag, reason = over(h) end
    -- it may have lapsed a moment after its stream broke
    if tag == 'ATTACHED' and grace_of(h) ~= '' and grants_in() ~= 0 then return refused_until(grants_in()) end
    if tag == 'ATTACHED' then
      put_on(h, there)
      write_holder(h)
    end
  elseif not h then
    tag, reason = ended_tag(lease, was_released, was_expired)
  end
  if next(changed) then save() end
  if tag == 'ATTACHED' then return { tag, now, more, hand_offs, moved, shown_grant(h) } end
  return { tag, now, more, hand_offs, reason }
end
