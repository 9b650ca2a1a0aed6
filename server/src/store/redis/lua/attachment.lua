-- Moves of a lease or waiter to another stream.

-- Returns the attachment after a move from `current` to `requested`, or nil if `requested` is
-- older.
local function moved_to(current, requested)
  if current == '' then return requested end
  if requested == '' then return nil end
  local newer = tonumber(string.match(requested, '%d+$')) > tonumber(string.match(current, '%d+$'))
  if stream_of(current) == stream_of(requested) then return newer and requested or current end
  return newer and requested or nil
end

-- Attaches a lease to a stream, and notifies the broker of its previous stream.
local function attach_to(h, requested)
  local from = h.stream
  h.stream = requested
  if from == '' or stream_of(from) == stream_of(requested) then return end
  moved = h.lease .. '.' .. from
  local broker = string.match(from, '^%w+')
  if broker ~= broker_id then publish(broker, lock .. '\n' .. h.lease .. '\n' .. from) end
end

exports.moved_to, exports.attach_to = moved_to, attach_to
