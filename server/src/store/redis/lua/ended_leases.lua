-- Ends of leases: the expiry of holders, hand-offs that lapse because they were not claimed, and
-- the records of ended leases, kept for a while so that repeated requests get a correct reply.

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

local function was_expired(lease) return still_counts(field('e:' .. lease), expired, expiry_counts) end

local function is_newly_released(lease) return still_counts(field('z:' .. lease), released, release_counts) end

-- Returns true if the lock was released from the lease. The lease may have other locks.
local function was_released(lease)
  return is_newly_released(lease) or still_counts(field('p:' .. lease), '0|0', partial_release_counts)
end

-- Returns how a lease that does not hold the lock has ended, and the reason if it was revoked.
local function ended_lease_tag(lease)
  -- expiry takes precedence: a lock can be added again after a release, but not after an expiry
  if was_expired(lease) then
    local reason = string.match(field('e:' .. lease), '^%d+|%d+|(.*)$')
    return reason and 'REVOKED' or 'EXPIRED', reason
  end
  return was_released(lease) and 'RELEASED' or 'NOTFOUND'
end

-- Returns how the hold with this token has ended, and the reason if it was revoked. h: the holder
-- of the lease, with another token.
local function ended_tag(h, lease, token)
  if not h then return ended_lease_tag(lease) end
  -- a lock is added to its lease again only after a release
  local is_older = tonumber(token) < tonumber(h.token)
  return is_older and was_released(lease) and 'RELEASED' or 'NOTFOUND'
end

-- Deletes up to 16 of the oldest ended leases that no longer count. Returns the number of the
-- oldest that is kept.
local function prune_ended(kind, first, last, kept)
  local names, stamps = {}, {}
  for seq = first, math.min(first + 15, last - 1) do names[#names + 1] = kind .. 'q:' .. seq end
  if #names == 0 then return first end
  read_fields(names)
  for i = 1, #names do stamps[i] = kind .. ':' .. string.sub(field(names[i]) or '', 1, 26) end
  read_fields(stamps)
  for i = 1, #names do
    local oldest, latest = field(names[i]), field(stamps[i])
    if oldest then
      if kept(first, string.sub(oldest, 28) + DELETION_DELAY_MS, last) then break end
      changed[names[i]] = false
      if tonumber(string.match(latest or '', '^(%d+)|')) == first then changed[stamps[i]] = false end
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

-- Reports the end of a lease to the broker that runs the command, and to no other. The report is an
-- element of the hand-offs in the reply: '!', 'kind|lease|token|held_ms|reason', owner.
local function report_end(h, reason)
  local max_hold = max_hold_of(h)
  local is_cut = max_hold > 0 and h.since + max_hold <= h.expires
  local kind = has_flag(h, REVOKED) and 'REVOKED' or is_cut and 'MAXHOLD' or 'EXPIRED'
  local text = table.concat({ kind, h.lease, h.token, math.max(h.expires - h.since, 0), reason or '' }, '|')
  local at = #hand_offs
  hand_offs[at + 1], hand_offs[at + 2], hand_offs[at + 3] = '!', text, h.owner
end

-- Ends a lease: reports and records its end, closes the lock after it, and frees its slot.
local function end_lease(h)
  local reason = has_flag(h, REVOKED) and field('k:' .. h.lease) or nil
  report_end(h, reason)
  record_change(has_flag(h, REVOKED) and 'REVOKED' or 'EXPIRED', h)
  close_after(h, h.expires, close)
  free_holder(h)
  expired = record_end('e', expired, h.lease, h.expires, expiry_counts, reason)
end

-- Returns why a holder cannot be renewed, and the reason if it was revoked.
local function end_reason(h)
  if has_flag(h, REVOKED) then return 'REVOKED', field('k:' .. h.lease) end
  return 'MAXHOLD'
end

-- Returns an unclaimed hand-off to its queue position. Nothing of the hand-off is recorded.
local function lapse(h)
  local w = read_waiter(h.position)
  w.attempts, w.passed, w.slot = h.attempts, h.expires, nil
  write_waiter(h.position, w)
  remove(h)
end

-- Returns the holder if it has not expired. Otherwise ends it and returns nil.
local function unexpired(h)
  if not h or h.expires > now then return h end
  if h.position then lapse(h) else end_lease(h) end
end

-- Ends expired holders, at most EXPIRATIONS_MAX per command to bound the run time of the script.
-- The next command continues.
local function expire()
  if holders.n == 0 or holders.earliest > now then return end
  read_holders(1, holders.top)
  local earliest, ended = 0, 0
  for slot = 1, holders.top do
    local text = field('h:' .. slot)
    local expires = text and tonumber(string.match(text, '^%w+|%w+|%w+|%d+|%d+|%d+|(%d+)'))
    if expires and expires > now then
      earliest = earliest == 0 and expires or math.min(earliest, expires)
    elseif expires and ended == EXPIRATIONS_MAX then
      earliest, more = earliest == 0 and expires or math.min(earliest, expires), 1
    elseif expires then
      unexpired(holder_at(slot))
      ended = ended + 1
    end
  end
  holders.earliest, changed.v = earliest, SCHEMA
end

-- Reads the record, ends expired holders, and returns the holder of the lease.
local function load_lease(lease)
  load('l:' .. lease, 'z:' .. lease, 'e:' .. lease)
  expire()
  return unexpired(holder_of(lease))
end
