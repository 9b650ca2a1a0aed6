-- Get: looks, without touching. ARGV 4: how many waiters to show at most
load()
local shown, place, seen = {}, queue.head, 0
while place <= queue.tail and #shown < tonumber(ARGV[4]) and seen < 4 * SCAN_MAX do
  local w = read_waiter(place)
  if w and w.until_ms > now then shown[#shown + 1] = { w.since, w.until_ms - now, w.owner } end
  place, seen = place + 1, seen + 1
end
if fence == 0 and queue.n == 0 then return { 'UNKNOWN', now, 0, {} } end
if not holder or holder.place or holder.expires <= now then
  return { 'STATE', now, 0, {}, fence, queue.n, shown }
end
return { 'STATE', now, 0, {}, fence, queue.n, shown, holder.lease, holder.token, holder.since,
  holder.expires - now, holder.owner }
