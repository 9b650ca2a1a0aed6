-- Acquire: grants the lock, or joins its queue, or says why not. A repeat finds what an earlier
-- attempt got, and renews the lease.
-- ARGV 4..: lease, request, arguments, attempt, ttl_ms, wait_ms, rejoin (0 or 1), queue cap, owner,
-- weight, limit (0: the one in use), terms ('' or 'max_hold_ms,lock_delay_ms', 0 for none)
local lease, request, arguments, attempt = ARGV[4], ARGV[5], ARGV[6], ARGV[7]
local ttl, wait, rejoin, cap = ARGV[8], tonumber(ARGV[9]), ARGV[10] == '1', tonumber(ARGV[11])
local weight, limit = ARGV[13], tonumber(ARGV[14])
if now > not_after then return { 'LATE', now } end
local r, was_released, was_expired, tombstones = load('r:' .. request, 'z:' .. lease, 'e:' .. lease, 'a')
expire()

-- Whatever the answer is, an expiry that was noticed stays noticed.
local function reply(tag, ...)
  if next(changed) or touched_queue then save() end
  return { tag, now, more, hand_offs, ... }
end

local function granted(h) return reply('GRANTED', h.token, announced(h), h.since) end

local function held_or_queued()
  changed.v = '1' -- so that a record without a TTL gets one even if nothing changed
  if wait > 0 then return reply('QUEUED', next_event()) end
  return reply('HELD', queue.n, math.max(closed_until - now, 0), holders.limit, (shown(5, 16)))
end

for attempt_known, until_ms in string.gmatch(tombstones or '', '(%w+)|(%d+)') do
  if attempt_known == attempt and tonumber(until_ms) > now then return reply('CANCELLED') end
end
local h = holder_by(request, r)
if h then
  if h.lease ~= lease or h.arguments ~= arguments then return reply('REUSED') end
  if not announced(h) then return reply('ENDED') end
  h.attempts = attempts_add(h.attempts, attempt)
  extend(h)
  return granted(h)
end
if remembered(changed['z:' .. lease] or was_released, released, kept_released)
  or remembered(changed['e:' .. lease] or was_expired, expired, kept_expired) then
  return reply('ENDED')
end
local place = tonumber(r)
if place then
  local w = read_waiter(place)
  if w.lease ~= lease or w.arguments ~= arguments then return reply('REUSED') end
  if wait > 0 then
    w.attempts, w.passed = attempts_add(w.attempts, attempt), 0
    w.until_ms = math.max(w.until_ms, now + wait)
    queue.until_ms = math.max(queue.until_ms, w.until_ms)
    write_waiter(place, w)
    touch_queue()
  end
  advance()
  h = holder_by(request, changed['r:' .. request] or r)
  if h and not h.place then return granted(h) end
  return held_or_queued()
end

local closed = grants_in()
if closed < 0 or closed > 0 and not (rejoin and wait > 0) then
  if next(changed) then save() end
  return closed < 0 and { 'NOERA', now } or { 'RECOVERING', now, closed }
end
local blocked = closed > 0 or advance()
local in_use = limit_in_use()
if in_use == 0 then holders.limit = limit end
local other = in_use > 0 and limit ~= in_use and (limit > 0 or in_use == WHOLE)
if set_limit > 0 then other = limit == WHOLE end
if other or tonumber(weight) > holders.limit then return reply('MISMATCH', in_use) end
local w = { lease = lease, request = request, arguments = arguments, ttl = ttl, since = now,
  weight = weight, terms = ARGV[15],
  until_ms = now + wait, passed = 0, attempts = attempts_add('', attempt), owner = ARGV[12] }
if not blocked and fits(weight) then return granted(grant(w)) end
if wait > 0 and queue.n >= cap then return reply('FULL') end
if wait > 0 then
  touch_queue()
  join(w)
end
return held_or_queued()
