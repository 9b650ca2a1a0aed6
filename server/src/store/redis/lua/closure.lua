-- Closure of the lock: a period in which nothing is granted. A lock has one closure, the one that
-- ends last. It is kept until the next grant, even after it has passed.

-- Records that the lock was closed, or opened before the end of its closure.
local function record_closure(kind, until_ms, owner)
  record_change(kind, { lease = '', since = now, until_ms = until_ms, weight = EXCLUSIVE_WEIGHT, owner = owner })
end

-- Closes the lock until a time, unless that time has passed or the lock is closed for longer. cause:
-- 'DELAY', 'ATLEAST' or 'OPERATOR'. owner: that of the lease that has ended, or the operator
local function close(cause, until_ms, owner)
  if until_ms <= math.max(now, closed_until) then return end
  closed_until, changed.c = until_ms, cause .. '|' .. owner
  record_closure('CLOSED', until_ms, owner)
end

-- Closes the lock after the hold of a lease: for its lock_delay from `delay_from` on, or nil for
-- none, and until its at_least has passed. `receive` receives each closure; without it the lock is closed.
local function close_after(h, delay_from, receive)
  if h.terms == '' then return end
  receive = receive or close
  local delay, at_least = string.match(h.terms, '^%d+,(%d+),(%d+)')
  if delay_from and delay ~= '0' then receive('DELAY', delay_from + delay, h.owner) end
  if at_least ~= '0' then receive('ATLEAST', h.since + at_least, h.owner) end
end

-- Returns a closure as callers receive it: empty unless the lock is closed now.
local function closure_info(cause, until_ms, owner)
  if until_ms <= now then return {} end
  return { cause, until_ms, until_ms - now, owner }
end

-- Returns the closure of the record.
local function recorded_closure()
  if closed_until <= now then return {} end
  local cause, owner = string.match(field('c'), '^(%u+)|(.*)$')
  return closure_info(cause, closed_until, owner)
end

exports.close, exports.close_after = close, close_after
