-- Remembers that a lock was released from a lease which may have others.
local function remember_part(lease, until_ms)
  local counters, parts = string.match(released, '^(%d+|%d+)|?(.*)$')
  parts = remember('p', parts ~= '' and parts or '1|0', lease, until_ms, kept_part)
  changed.p, changed.z = nil, counters .. '|' .. parts
end

-- Release: gives a lease back, or one of its entries, and hands the lock to the next waiters in the
-- same step.
-- what: '' for all, '+' for all of a lock whose lease may have others, the request of an entry of such a
-- lock, or '!': it lapses. tells: 1 or '': to tell brokers that want
-- to know when the lock is free, or not
local function verb(lease, token, what, via, tells)
  local l, was_released, was_expired = load('l:' .. lease, 'z:' .. lease, 'e:' .. lease)
  known['l:' .. lease] = l
  local tag, left, reason = 'NOTFOUND', 0
  local is_part = what ~= ''
  if what == '+' then what = '' end
  expire()
  local h = living(holder_of(lease))
  if h and h.token == token and is_elsewhere(h, via) then
    tag = 'ELSEWHERE'
  elseif h and h.token == token and what == '!' then
    tag, h.expires = 'NOW', now
    end_lease(h)
  elseif h and h.token == token then
    tag = 'NOW'
    local e = what ~= '' and entry_of(h, what)
    if what ~= '' then bury(what) end
    if what ~= '' and not e then
      tag, left = 'RELEASED', hold_count(h)
    elseif e and h.entries ~= '' then
      leave(h, e)
      left = hold_count(h)
    else
      -- repeats of the call that made the lease are refused by the memory of released leases
      if h.entries ~= '' or has_flag(h, ADDED) then
        bury(h.request)
        for other in string.gmatch(h.entries, ENTRY) do bury(other) end
      end
      if has_flag(h, CLOSES) then
        h.expires = now
        close_after(h)
      end
      note('RELEASED', h)
      free(h)
      if is_part then remember_part(lease, now + expiry(h.ttl)) end
      -- a part that was added may be added again
      if not is_part or not has_flag(h, ADDED) then
        remember('z', changed.z or released, lease, now, kept_released)
      end
    end
  elseif not h then
    tag, reason = ended_tag(lease, was_released, was_expired)
  end
  advance()
  if tells == '1' then tell_free() end
  if next(changed) or touched_queue then save() end
  return { tag, now, more, hand_offs, left, reason }
end
