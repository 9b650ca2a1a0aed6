-- How leases ended, remembered for a while so that repeats get a true answer. They are deleted a
-- second later, so that a small step of the clock back changes no answer.
local FORGET = 1000
-- The expiry of the longest validity, an hour, and a little.
local PART_MAX = 4330000

-- A time that is far ahead is from before the clock was set back, and counts for nothing.
local function kept_released(seq, at, last)
  return seq + RELEASED_MAX > last or at + TOMBSTONE > now and at <= now + 2 * FORGET
end

-- A lock that was released from a lease is remembered until the lease cannot be shown with it any more.
local function kept_part(_, until_ms) return until_ms > now and until_ms <= now + PART_MAX end

local function kept_expired(seq, at, last) return seq + EXPIRED_MAX > last and at + EXPIRED_MS > now end

-- Whether an ended lease's stamp says that it is still remembered.
local function remembered(stamp, counters, kept)
  local seq, at = string.match(stamp or '', '^(%d+)|(%d+)')
  return seq and kept(tonumber(seq), tonumber(at), tonumber(string.match(counters, '^%d+|(%d+)')))
end

local function was_part(lease) return remembered(field('p:' .. lease), '0|0', kept_part) end

-- Why a lease was revoked; nil if it was not.
local function reason_in(stamp) return string.match(stamp or '', '^%d+|%d+|(.*)$') end

-- How a lease that does not hold the lock ended, and why it was revoked.
local function ended_tag(lease, was_released, was_expired)
  local stamp = changed['e:' .. lease] or was_expired
  -- first: it may have been added again after a release, not after this
  if remembered(stamp, expired, kept_expired) then
    return reason_in(stamp) and 'REVOKED' or 'EXPIRED', reason_in(stamp)
  end
  return (remembered(was_released, released, kept_released) or was_part(lease)) and 'RELEASED' or 'NOTFOUND'
end

local function fields(names)
  local values = call('HMGET', lock, unpack(names))
  for i, name in ipairs(names) do
    if changed[name] ~= nil then values[i] = changed[name] end
  end
  return values
end

-- Drops up to 16 of the oldest ended leases that need not be remembered; returns the first kept.
local function forget(kind, first, last, kept)
  local names, stamps = {}, {}
  for seq = first, math.min(first + 15, last - 1) do names[#names + 1] = kind .. 'q:' .. seq end
  if #names == 0 then return first end
  local oldest = fields(names)
  for i = 1, #names do stamps[i] = kind .. ':' .. string.sub(oldest[i] or '', 1, 26) end
  local latest = fields(stamps)
  for i = 1, #names do
    if oldest[i] then
      if kept(first, string.sub(oldest[i], 28) + FORGET, last) then break end
      changed[names[i]] = false
      if tonumber(string.match(latest[i] or '', '^(%d+)|')) == first then changed[stamps[i]] = false end
    end
    first = first + 1
  end
  return first
end

-- Remembers an ended lease, and every eighth time forgets old ones; returns the counters. Behind those of
-- released leases stand those of parts.
local function remember(kind, counters, lease, at, kept, reason)
  local first, last, end_at = string.match(counters, '^(%d+)|(%d+)()')
  local parts = string.sub(counters, end_at)
  last, at = int(last + 1), int(at)
  changed[kind .. ':' .. lease] = last .. '|' .. at .. (reason and '|' .. reason or '')
  changed[kind .. 'q:' .. last] = lease .. '|' .. at
  if last % 8 == 0 then
    first = forget(kind, tonumber(first), tonumber(last), kept)
    local first_part, last_part = string.match(parts, '^|(%d+)|(%d+)$')
    if first_part then
      parts = '|' .. forget('p', tonumber(first_part), tonumber(last_part), kept_part) .. '|' .. last_part
    end
  end
  changed[kind] = first .. '|' .. last .. parts
  return changed[kind]
end
