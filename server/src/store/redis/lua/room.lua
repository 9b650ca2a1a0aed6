-- Room for another grant, and its use by waiters.

-- Returns the limit in use, or 0 while the lock has neither holders nor waiters.
local function limit_in_use()
  if set_limit > 0 then return set_limit end
  return (holders.n > 0 or queue.n > 0) and holders.limit or 0
end

local function fits(weight)
  return closed_until <= now and holders.n < HOLDERS_MAX and holders.used + weight <= holders.limit
end

-- Grants the lock to waiters while there is room. Returns true if the next waiter does not fit.
local function advance()
  return queue.n > 0 and waiting().grant_waiters()
end
