-- Messages about the lock: to another broker, and to the watch streams.

-- Publishes a message about this lock to another broker. If the brokers of a cluster subscribe to
-- sharded channels, ARGV 3 ends in '!', and the message stays on the master of the lock's slot.
local function publish(broker, message)
  local channel, slot = string.match(lock, '^[^{]*') .. 'b:' .. broker, string.match(ARGV[3], '({%d+})!$')
  if slot then call('SPUBLISH', channel .. slot, message) else call('PUBLISH', channel, message) end
end

-- Records a change of this lock for the watch streams. The changes are published in one message
-- when they are written. Nothing depends on that message, so publishing may fail.
local function record_change(kind, w)
  if not watched then return end
  local left = math.max((w.expires or w.until_ms) - now, 0)
  local text = table.concat({ kind, w.lease, w.token or 0, w.since, left, w.weight, holders.limit, w.owner }, '|')
  events = events or {}
  events[#events + 1] = #text .. ':' .. text
end

local function publish_changes()
  local channel = string.match(lock, '^[^{]*') .. 'watch'
  redis.pcall('PUBLISH', channel, lock .. '\n!\n' .. table.concat(events))
end

exports.record_change, exports.publish_changes = record_change, publish_changes
