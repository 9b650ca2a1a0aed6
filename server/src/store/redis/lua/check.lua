-- Check: whether a token is that of a live lease, without touching. A lease that may have ended before the
-- store lost data is not called live.
local function verb(token)
  load()
  if fence == 0 then return { 'UNKNOWN', now, 0, {} } end
  read_holders(1, holders.top)
  for slot = 1, holders.top do
    local h = holder_at(slot)
    if h and not h.place and h.token == token and h.expires > now then
      if grants_in() ~= 0 then return refused_until(grants_in()) end
      return { 'LIVE', now, 0, {}, h.expires - now }
    end
  end
  return { 'STALE', now, 0, {}, fence }
end
