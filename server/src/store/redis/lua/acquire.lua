-- Acquire: grants the lock, or joins its queue, or says why not. A repeat finds what an earlier
-- attempt got, and renews the lease.
-- ARGV 4..: lease, request, arguments, attempt, ttl_ms, wait_ms, rejoin (0 or 1), queue cap, owner
local lease, request, arguments, attempt = ARGV[4], ARGV[5], ARGV[6], ARGV[7]
local ttl, wait, rejoin, cap = tonumber(ARGV[8]), tonumber(ARGV[9]), ARGV[10] == '1', tonumber(ARGV[11])
if now > not_after then return { 'LATE', now } end
local place, was_released, was_expired, tombstones = load('r:' .. request, 'z:' .. lease, 'e:' .. lease, 'a')
expire()

-- Whatever the answer is, an expiry that was noticed stays noticed.
local function reply(tag, ...)
  if next(changed) or touched_queue then save() end
  return { tag, now, more, hand_offs, ... }
end

local function granted()
  if hand_offs[1] == request then hand_offs = {} end
  return reply('GRANTED', holder.token, holder.ttl, holder.since)
end

local function held_or_queued()
  changed.v = '1' -- so that a record without a TTL gets one even if nothing changed
  if wait > 0 then return reply('QUEUED', next_event()) end
  if not holder or holder.place then return reply('HELD', queue.n) end
  return reply('HELD', queue.n, holder.lease, holder.token, holder.since, holder.expires - now, holder.owner)
end

for known, until_ms in string.gmatch(tombstones or '', '(%w+)|(%d+)') do
  if known == attempt and tonumber(until_ms) > now then return reply('CANCELLED') end
end
if holder and holder.request == request then
  if holder.lease ~= lease or holder.arguments ~= arguments then return reply('REUSED') end
  holder.attempts = attempts_add(holder.attempts, attempt)
  extend()
  return granted()
end
if remembered(changed['z:' .. lease] or was_released, released, kept_released)
  or remembered(changed['e:' .. lease] or was_expired, expired, kept_expired) then
  return reply('ENDED')
end
if place then
  local w = read_waiter(tonumber(place))
  if w.lease ~= lease or w.arguments ~= arguments then return reply('REUSED') end
  if wait > 0 then
    w.attempts, w.passed = attempts_add(w.attempts, attempt), 0
    w.until_ms = math.max(w.until_ms, now + wait)
    queue.until_ms = math.max(queue.until_ms, w.until_ms)
    write_waiter(tonumber(place), w)
    touch_queue()
  end
  advance()
  if holder and holder.request == request and not holder.place then return granted() end
  return held_or_queued()
end

local closed = grants_in()
if closed < 0 or closed > 0 and not (rejoin and wait > 0) then
  if next(changed) then save() end
  return closed < 0 and { 'NOERA', now } or { 'RECOVERING', now, closed }
end
local w = { lease = lease, request = request, arguments = arguments, ttl = ttl, since = now,
  until_ms = now + wait, passed = 0, attempts = attempts_add('', attempt), owner = ARGV[12] }
if closed == 0 then
  advance()
  if not holder and more == 0 then
    grant(w)
    return granted()
  end
end
if wait > 0 and queue.n >= cap then return reply('FULL') end
if wait > 0 then
  touch_queue()
  join(w)
end
return held_or_queued()
