-- Tells another broker of this lock. Where the brokers of a cluster listen to sharded channels, ARGV 3
-- ends in '!': the message then stays on the master of the lock's slot.
local function tell(broker, message)
  local channel, slot = string.match(lock, '^[^{]*') .. 'b:' .. broker, string.match(ARGV[3], '({%d+})!$')
  if slot then call('SPUBLISH', channel .. slot, message) else call('PUBLISH', channel, message) end
end
