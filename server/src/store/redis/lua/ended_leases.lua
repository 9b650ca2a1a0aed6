-- Records of ended leases, kept for a while so that repeated requests get a correct reply.

-- Returns true while a release still counts. A time far in the future dates from before the clock
-- was set back and is ignored.
local function release_counts(seq, at, last)
  return seq + RELEASED_MAX > last or at + TOMBSTONE_MS > now and at <= now + 2 * DELETION_DELAY_MS
end

-- Returns true while a partial release still counts: until the lease can no longer be presented
-- with the released lock.
local function partial_release_counts(_, until_ms) return until_ms > now and until_ms <= now + PARTIAL_RELEASE_MAX_MS end

local function expiry_counts(seq, at, last) return seq + EXPIRED_MAX > last and at + EXPIRED_MS > now end

-- Returns true if the stamp of an ended lease still counts.
local function still_counts(stamp, counters, kept)
  local seq, at = string.match(stamp or '', '^(%d+)|(%d+)')
  return seq and kept(tonumber(seq), tonumber(at), tonumber(string.match(counters, '^%d+|(%d+)')))
end

local function was_partly_released(lease) return still_counts(field('p:' .. lease), '0|0', partial_release_counts) end

-- Returns the reason for which a lease was revoked, or nil if it was not revoked.
local function revocation_reason(stamp) return string.match(stamp or '', '^%d+|%d+|(.*)$') end

-- Returns true if the lock was released from the lease. The lease may have other locks.
local function is_released_recently(lease, was_released)
  return still_counts(was_released, released, release_counts) or was_partly_released(lease)
end

-- Returns how a lease that does not hold the lock has ended, and the reason if it was revoked.
local function ended_lease_tag(lease, was_released, was_expired)
  local stamp = changed['e:' .. lease] or was_expired
  -- expiry takes precedence: a lock can be added again after a release, but not after an expiry
  if still_counts(stamp, expired, expiry_counts) then
    return revocation_reason(stamp) and 'REVOKED' or 'EXPIRED', revocation_reason(stamp)
  end
  return is_released_recently(lease, was_released) and 'RELEASED' or 'NOTFOUND'
end

-- Returns how the hold with this token has ended, and the reason if it was revoked. h: the holder of
-- the lease, with another token.
local function ended_tag(h, lease, token, was_released, was_expired)
  if not h then return ended_lease_tag(lease, was_released, was_expired) end
  -- a lock is added to its lease again only after a release
  local is_older = tonumber(token) < tonumber(h.token)
  return is_older and is_released_recently(lease, was_released) and 'RELEASED' or 'NOTFOUND'
end

local function fields(names)
  local values = call('HMGET', lock, unpack(names))
  for i, name in ipairs(names) do
    if changed[name] ~= nil then values[i] = changed[name] end
  end
  return values
end

-- Deletes up to 16 of the oldest ended leases that no longer count. Returns the number of the
-- oldest that is kept.
local function prune_ended(kind, first, last, kept)
  local names, stamps = {}, {}
  for seq = first, math.min(first + 15, last - 1) do names[#names + 1] = kind .. 'q:' .. seq end
  if #names == 0 then return first end
  local oldest = fields(names)
  for i = 1, #names do stamps[i] = kind .. ':' .. string.sub(oldest[i] or '', 1, 26) end
  local latest = fields(stamps)
  for i = 1, #names do
    if oldest[i] then
      if kept(first, string.sub(oldest[i], 28) + DELETION_DELAY_MS, last) then break end
      changed[names[i]] = false
      if tonumber(string.match(latest[i] or '', '^(%d+)|')) == first then changed[stamps[i]] = false end
    end
    first = first + 1
  end
  return first
end

-- Records an ended lease and returns the new counters. Every eighth call deletes old records. The
-- counters of released leases are followed by those of partial releases.
local function record_end(kind, counters, lease, at, kept, reason)
  local first, last, end_at = string.match(counters, '^(%d+)|(%d+)()')
  local parts = string.sub(counters, end_at)
  last, at = int(last + 1), int(at)
  changed[kind .. ':' .. lease] = last .. '|' .. at .. (reason and '|' .. reason or '')
  changed[kind .. 'q:' .. last] = lease .. '|' .. at
  if last % 8 == 0 then
    first = prune_ended(kind, tonumber(first), tonumber(last), kept)
    local first_part, last_part = string.match(parts, '^|(%d+)|(%d+)$')
    if first_part then
      first_part = prune_ended('p', tonumber(first_part), tonumber(last_part), partial_release_counts)
      parts = '|' .. first_part .. '|' .. last_part
    end
  end
  changed[kind] = first .. '|' .. last .. parts
  return changed[kind]
end
