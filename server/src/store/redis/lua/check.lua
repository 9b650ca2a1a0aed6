-- Check: returns whether a token is that of a live lease, without writing. A lease that may have
-- ended before the store lost data is not reported as live.
local function verb(token)
  load()
  if last_token == 0 then return { 'UNKNOWN', now, 0, {} } end
  read_holders(1, holders.top)
  for slot = 1, holders.top do
    local h = holder_at(slot)
    if h and not h.position and h.token == token and h.expires > now then
      if ms_until_grants() ~= 0 then return reject_until(ms_until_grants()) end
      return { 'LIVE', now, 0, {}, h.expires - now }
    end
  end
  return { 'STALE', now, 0, {}, last_token }
end
