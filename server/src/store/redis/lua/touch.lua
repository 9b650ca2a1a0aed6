-- Touch: says that this broker lives, grants the lock if it is free, and tells what it may have missed.
if now > not_after then return { 'LATE', now } end
if grants_in() < 0 then return { 'NOERA', now } end
load()
expire()
local touched_ms, silent = last_touch(me)
local rejoin = not touched_ms or silent > SILENT
if touched_ms then touch_queue() end
advance()
if next(changed) or touched_queue then save() end
local held = holder and broker_of(holder.attempts) == me
if held then hand_offs = {} end
return { 'TOUCHED', now, more, hand_offs, rejoin and 1 or 0, next_event(),
  held and holder.request or '', held and holder.token or 0, held and holder.place and 1 or 0 }
