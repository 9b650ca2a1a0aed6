-- Reading of a lease.

-- Reads the record, ends expired holders, and returns the holder of the lease.
local function load_lease(lease)
  load('l:' .. lease)
  expire()
  return unexpired(holder_of(lease))
end
