-- Tombstones of cancelled attempts and of requests whose entry was released, perhaps before they
-- arrived. An attempt or request that arrives after its tombstone is rejected.
local function has_tombstone(id)
  local until_ms = string.match(field('a') or '', '%f[%w]' .. id .. '|(%d+)')
  return until_ms and tonumber(until_ms) > now
end

local function add_tombstone(id)
  local kept = {}
  for known_id, until_ms in string.gmatch(field('a') or '', '(%w+)|(%d+)') do
    if known_id ~= id and tonumber(until_ms) > now then kept[#kept + 1] = known_id .. '|' .. until_ms end
  end
  kept[#kept + 1] = id .. '|' .. now + TOMBSTONE_MS
  changed.a = table.concat(kept, ',', math.max(#kept - TOMBSTONES_MAX + 1, 1))
end
