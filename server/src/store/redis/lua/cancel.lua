-- Cancel: takes back one attempt of a request; with the last one the request leaves the queue or the
-- lock. An attempt that has not arrived yet leaves a tombstone.
-- ARGV 4..: request, attempt
local request, attempt = ARGV[4], ARGV[5]
local place, tombstones = load('r:' .. request, 'a')
expire()
local holds = holder and holder.request == request
local w = not holds and place and read_waiter(tonumber(place))
local left = holds and attempts_remove(holder.attempts, attempt) or w and attempts_remove(w.attempts, attempt)

local function reply(tag)
  save()
  return { tag, now, more, hand_offs }
end

if not left then
  local kept = {}
  for known, until_ms in string.gmatch(tombstones or '', '(%w+)|(%d+)') do
    if tonumber(until_ms) > now then kept[#kept + 1] = known .. '|' .. until_ms end
  end
  kept[#kept + 1] = attempt .. '|' .. fmt(now + TOMBSTONE)
  changed.a = table.concat(kept, ',', math.max(#kept - 255, 1))
  return reply('UNKNOWN')
end
if left ~= '' then
  if holds then
    holder.attempts = left
    write_holder()
  else
    w.attempts = left
    write_waiter(tonumber(place), w)
  end
  return reply('KEPT')
end
if holds then free() else drop(tonumber(place), request) end
advance()
return reply(holds and 'FREED' or 'DEQUEUED')
