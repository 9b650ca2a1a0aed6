-- Brokers to notify when the lock becomes free: a node of a RedLock store has no queue.
local function subscribe_release()
  local brokers = field('n') or ''
  if #brokers < RELEASE_SUBSCRIBERS_MAX * #broker_id and not string.find(brokers, broker_id, 1, true) then
    changed.n = brokers .. broker_id
  end
end

local function publish_release()
  local brokers = holders.n == 0 and field('n')
  if not brokers then return end
  changed.n = false
  for at = 1, #brokers, #broker_id do
    local broker = string.sub(brokers, at, at + #broker_id - 1)
    if broker ~= broker_id then publish(broker, lock) end
  end
end
