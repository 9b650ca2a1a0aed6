-- Holders as others may see them: at most so many, of the slots up to `last`, and how many there are.
local function shown(most, last)
  read_holders(1, last)
  local list, count = {}, 0
  for slot = 1, math.min(last, holders.top) do
    local h = holder_at(slot)
    if h and not h.place and h.expires > now then
      count = count + 1
      if count <= most then
        list[count] = { h.lease, h.token, h.since, h.expires - now, h.weight, h.owner }
      end
    elseif h and not h.place then
      close_after(h)
    end
  end
  return list, count
end
