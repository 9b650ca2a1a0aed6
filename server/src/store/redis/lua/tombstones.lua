-- What was taken back, maybe before it came: attempts that were cancelled, requests whose entry was
-- released. Each is refused when it arrives late.
local function is_buried(id)
  local until_ms = string.match(field('a') or '', '%f[%w]' .. id .. '|(%d+)')
  return until_ms and tonumber(until_ms) > now
end

local function bury(id)
  local kept = {}
  for known_id, until_ms in string.gmatch(field('a') or '', '(%w+)|(%d+)') do
    if known_id ~= id and tonumber(until_ms) > now then kept[#kept + 1] = known_id .. '|' .. until_ms end
  end
  kept[#kept + 1] = id .. '|' .. now + TOMBSTONE
  changed.a = table.concat(kept, ',', math.max(#kept - 255, 1))
end
