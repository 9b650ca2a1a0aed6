-- Check: whether a token is that of a live lease, without touching.
local function verb(token)
  load()
  if fence == 0 then return { 'UNKNOWN', now, 0, {} } end
  read_holders(holders.top)
  for slot = 1, holders.top do
    local h = holder_at(slot)
    if h and not h.place and h.token == token and h.expires > now then
      return { 'LIVE', now, 0, {}, h.expires - now }
    end
  end
  return { 'STALE', now, 0, {}, fence }
end
