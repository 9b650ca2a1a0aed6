-- Brokers that want to be told when the lock is free: a node of several has no line of its own.
local TOLD_MAX = 64

local function tell_me()
  local brokers = field('n') or ''
  if #brokers < TOLD_MAX * #me and not string.find(brokers, me, 1, true) then changed.n = brokers .. me end
end

local function tell_free()
  local brokers = holders.n == 0 and field('n')
  if not brokers then return end
  changed.n = false
  for at = 1, #brokers, #me do
    local broker = string.sub(brokers, at, at + #me - 1)
    if broker ~= me then tell(broker, lock) end
  end
end
