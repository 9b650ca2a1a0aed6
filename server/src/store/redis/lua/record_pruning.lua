-- Deletion of the records of ended leases.

local function create_pruning()
  -- Returns true while the record of an ended lease still counts. kind: 'e' for an expiry, 'z' for a
  -- release, 'p' for a partial release
  local function record_counts(kind, seq, at, last)
    if kind == 'e' then return seq + EXPIRED_MAX > last and at + EXPIRED_MS > now end
    -- until the lease can no longer be presented with the released lock
    if kind == 'p' then return at > now and at <= now + PARTIAL_RELEASE_MAX_MS end
    -- a time far in the future dates from before the clock was set back
    return seq + RELEASED_MAX > last or at + TOMBSTONE_MS > now and at <= now + 2 * DELETION_DELAY_MS
  end

  -- Finds those of the 16 oldest ended leases that no longer count. Returns the number of the oldest
  -- that is kept, and the names of the fields to delete. read: returns the values of fields
  local function prunable(kind, first, last, read)
    local names, stamps, deleted = {}, {}, {}
    for seq = first, math.min(first + 15, last - 1) do names[#names + 1] = kind .. 'q:' .. seq end
    if #names == 0 then return first, deleted end
    local oldest = read(names)
    for i = 1, #names do stamps[i] = kind .. ':' .. string.sub(oldest[i] or '', 1, 26) end
    local latest = read(stamps)
    for i = 1, #names do
      if oldest[i] then
        if record_counts(kind, first, string.sub(oldest[i], 28) + DELETION_DELAY_MS, last) then break end
        deleted[#deleted + 1] = names[i]
        if tonumber(string.match(latest[i] or '', '^(%d+)|')) == first then deleted[#deleted + 1] = stamps[i] end
      end
      first = first + 1
    end
    return first, deleted
  end
  return record_counts, prunable
end
