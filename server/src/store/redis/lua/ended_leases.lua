-- Records of ended leases.

-- Returns true while the record of an ended lease still counts. kind: 'e' for an expiry, 'z' for a
-- release, 'p' for a partial release
local function record_counts(kind, seq, at, last)
  if kind == 'e' then return seq + EXPIRED_MAX > last and at + EXPIRED_MS > now end
  -- until the lease can no longer be presented with the released lock
  if kind == 'p' then return at > now and at <= now + PARTIAL_RELEASE_MAX_MS end
  -- a time far in the future dates from before the clock was set back
  return seq + RELEASED_MAX > last or at + TOMBSTONE_MS > now and at <= now + 2 * DELETION_DELAY_MS
end

-- Deletes up to 16 of the oldest ended leases that no longer count. Returns the number of the
-- oldest that is kept.
local function prune_ended(kind, first, last)
  local names, stamps = {}, {}
  for seq = first, math.min(first + 15, last - 1) do names[#names + 1] = kind .. 'q:' .. seq end
  if #names == 0 then return first end
  read_fields(names)
  for i = 1, #names do stamps[i] = kind .. ':' .. string.sub(field(names[i]) or '', 1, 26) end
  read_fields(stamps)
  for i = 1, #names do
    local oldest, latest = field(names[i]), field(stamps[i])
    if oldest then
      if record_counts(kind, first, string.sub(oldest, 28) + DELETION_DELAY_MS, last) then break end
      changed[names[i]] = false
      if tonumber(string.match(latest or '', '^(%d+)|')) == first then changed[stamps[i]] = false end
    end
    first = first + 1
  end
  return first
end

-- Records an ended lease and returns the new counters. Every eighth call deletes old records. The
-- counters of released leases are followed by those of partial releases.
local function record_end(kind, counters, lease, at, reason)
  local first, last, end_at = string.match(counters, '^(%d+)|(%d+)()')
  local parts = string.sub(counters, end_at)
  last, at = int(last + 1), int(at)
  changed[kind .. ':' .. lease] = last .. '|' .. at .. (reason and '|' .. reason or '')
  changed[kind .. 'q:' .. last] = lease .. '|' .. at
  if last % 8 == 0 then
    first = prune_ended(kind, tonumber(first), tonumber(last))
    local first_part, last_part = string.match(parts, '^|(%d+)|(%d+)$')
    if first_part then
      first_part = prune_ended('p', tonumber(first_part), tonumber(last_part))
      parts = '|' .. first_part .. '|' .. last_part
    end
  end
  changed[kind] = first .. '|' .. last .. parts
  return changed[kind]
end
