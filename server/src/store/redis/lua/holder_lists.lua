-- Reading of many holders.

-- Reads a range of slots with one command.
local function read_holders(first, last)
  local names = {}
  for slot = math.max(first, 2), math.min(last, holders.top) do names[#names + 1] = 'h:' .. slot end
  if #names > 0 then read_fields(names) end
end

-- Returns at most `most` holders in the slots up to `last`, as other callers may see them, and the
-- number and the weight of holders there. `on_expired` receives each holder whose end no command has
-- recorded yet.
local function holders_info(most, last, on_expired)
  read_holders(1, last)
  local list, count, used = {}, 0, 0
  for slot = 1, math.min(last, holders.top) do
    local h = holder_at(slot)
    if h and not h.position and h.expires > now then
      count, used = count + 1, used + h.weight
      if count <= most then
        list[count] = { h.lease, h.token, h.since, h.expires - now, h.weight, h.owner }
      end
    elseif h and not h.position then
      on_expired(h)
    end
  end
  return list, count, used
end

exports.read_holders = read_holders
