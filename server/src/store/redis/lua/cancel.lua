-- Cancel: takes back one attempt of a request; with the last one the request leaves the queue or the
-- lock. An attempt that has not arrived yet leaves a tombstone.
-- ARGV 4..: request, attempt
local request, attempt = ARGV[4], ARGV[5]
local r, tombstones = load('r:' .. request, 'a')
expire()
local h, place = holder_by(request, r), tonumber(r)
local w = not h and place and read_waiter(place)
local left = h and attempts_remove(h.attempts, attempt) or w and attempts_remove(w.attempts, attempt)

local function reply(tag)
  save()
  return { tag, now, more, hand_offs }
end

if not left then
  local kept = {}
  for known, until_ms in string.gmatch(tombstones or '', '(%w+)|(%d+)') do
    if tonumber(until_ms) > now then kept[#kept + 1] = known .. '|' .. until_ms end
  end
  kept[#kept + 1] = attempt .. '|' .. now + TOMBSTONE
  changed.a = table.concat(kept, ',', math.max(#kept - 255, 1))
  return reply('UNKNOWN')
end
if left ~= '' then
  if h then
    h.attempts = left
    write_holder(h)
  else
    w.attempts = left
    write_waiter(place, w)
  end
  return reply('KEPT')
end
if h then free(h) else drop(place, request) end
advance()
return reply(h and 'FREED' or 'DEQUEUED')
