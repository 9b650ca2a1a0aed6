-- Cancel: takes back one attempt of a request; with the last one the request leaves the queue or the
-- lock. An attempt that has not arrived yet leaves a tombstone. tells: as for Release
local function verb(request, attempt, tells)
  local r = load('r:' .. request)
  known['r:' .. request] = r
  expire()
  local h, place = living(holder_by(request)), tonumber(r)
  local e = h and entry_of(h, request)
  local w = not h and place and read_waiter(place)
  local left = e and attempts_remove(e.attempts, attempt) or w and attempts_remove(w.attempts, attempt)

  local function reply(tag)
    save()
    return { tag, now, more, hand_offs }
  end

  if not left then
    bury(attempt)
    return reply((e or w) and 'KEPT' or 'UNKNOWN')
  end
  if left ~= '' then
    if h then
      set_attempts(h, e, left)
      write_holder(h)
    else
      w.attempts = left
      write_waiter(place, w)
    end
    return reply('KEPT')
  end
  if h and h.entries ~= '' then
    leave(h, e)
  else
    note(h and not h.place and 'RELEASED' or 'ABANDONED', h or w)
    if h then free(h) else drop(place, request) end
  end
  advance()
  if tells == '1' then tell_free() end
  return reply(h and 'FREED' or 'DEQUEUED')
end
