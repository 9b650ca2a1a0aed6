-- Change notifications for watch streams: the changes of this lock, published in one message when
-- they are written. Nothing depends on that message, so publishing may fail.
function record_change(kind, w)
  if not watched then return end
  local left = math.max((w.expires or w.until_ms) - now, 0)
  local text = table.concat({ kind, w.lease, w.token or 0, w.since, left, w.weight, holders.limit, w.owner }, '|')
  events[#events + 1] = #text .. ':' .. text
end

function publish_changes()
  local channel = string.match(lock, '^[^{]*') .. 'watch'
  redis.pcall('PUBLISH', channel, lock .. '\n!\n' .. table.concat(events))
end
