-- Returns at most `most` holders in the slots up to `last`, as other callers may see them, and the
-- number of holders there.
local function holders_info(most, last)
  read_holders(1, last)
  local list, count = {}, 0
  for slot = 1, math.min(last, holders.top) do
    local h = holder_at(slot)
    if h and not h.position and h.expires > now then
      count = count + 1
      if count <= most then
        list[count] = { h.lease, h.token, h.since, h.expires - now, h.weight, h.owner }
      end
    elseif h and not h.position then
      start_lock_delay(h)
    end
  end
  return list, count
end
