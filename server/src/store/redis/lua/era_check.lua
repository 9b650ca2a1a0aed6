-- Grants that the era allows. While it allows none, nothing is confirmed that may have ended before
-- the store lost data: no repeated request, no re-entry, no claim.

-- Returns the milliseconds until grants of this lock are allowed, or -1 if this era never allows
-- them.
local function ms_until_grants()
  read_era()
  -- a lock without a record here may exist on the server to which the slot is moving
  return is_moving and last_token == 0 and -1 or closed_ms
end
