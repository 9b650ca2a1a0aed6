-- Expiry of holders.

-- Returns the holder if it has not expired. Otherwise ends it and returns nil.
local function unexpired(h)
  if not h or h.expires > now then return h end
  if h.position then rare().lapse(h) else rare().end_lease(h) end
end

-- Ends expired holders.
local function expire()
  if holders.n > 0 and holders.earliest <= now then rare().end_expired() end
end
