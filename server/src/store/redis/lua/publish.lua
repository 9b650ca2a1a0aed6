-- Publishes a message about this lock to another broker. If the brokers of a cluster subscribe to
-- sharded channels, ARGV 3 ends in '!', and the message stays on the master of the lock's slot.
local function publish(broker, message)
  local channel, slot = string.match(lock, '^[^{]*') .. 'b:' .. broker, string.match(ARGV[3], '({%d+})!$')
  if slot then call('SPUBLISH', channel .. slot, message) else call('PUBLISH', channel, message) end
end
