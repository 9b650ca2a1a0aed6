-- Lease streams. The stream of a lease or waiter is 'broker.epoch.number', or '' for none; the
-- number is its client's count of attachments. `moved` is 'lease.broker.epoch.number', with the
-- previous stream.

local function stream_of(attachment) return string.match(attachment, '^(.*)%.') or '' end

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

-- Returns true if a lease is not on the stream through which it is changed. via: '*' for any
-- stream, '' for no stream, or the epoch of a stream of this broker.
local function is_on_other_stream(h, via)
  return via ~= '*' and stream_of(h.stream) ~= (via ~= '' and broker_id .. '.' .. via or '')
end
