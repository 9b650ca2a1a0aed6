-- What others may watch: the changes of this lock, told in one message when they are written. Nothing
-- depends on it, so it may fail.
function note(kind, w)
  if not watched then return end
  local left = math.max((w.expires or w.until_ms) - now, 0)
  local text = table.concat({ kind, w.lease, w.token or 0, w.since, left, w.weight, holders.limit, w.owner }, '|')
  events[#events + 1] = #text .. ':' .. text
end

function tell_watchers()
  local channel = string.match(lock, '^[^{]*') .. 'watch'
  redis.pcall('PUBLISH', channel, lock .. '\n!\n' .. table.concat(events))
end
