-- Records of ended leases.

local record_counts, prunable = create_pruning()

local function read_values(names)
  local values = {}
  read_fields(names)
  for i = 1, #names do values[i] = field(names[i]) end
  return values
end

-- Deletes old records. Returns the number of the oldest that is kept.
local function prune_ended(kind, first, last)
  local kept, names = prunable(kind, tonumber(first), tonumber(last), read_values)
  for i = 1, #names do changed[names[i]] = false end
  return kept
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
    first = prune_ended(kind, first, last)
    local first_part, last_part = string.match(parts, '^|(%d+)|(%d+)$')
    if first_part then
      first_part = prune_ended('p', first_part, last_part)
      parts = '|' .. first_part .. '|' .. last_part
    end
  end
  changed[kind] = first .. '|' .. last .. parts
  return changed[kind]
end
