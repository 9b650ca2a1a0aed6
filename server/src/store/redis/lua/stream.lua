-- Lease streams. The stream of a lease or waiter is 'broker.epoch.number', or '' for none; the
-- number is its client's count of attachments. `moved` is 'lease.broker.epoch.number', with the
-- previous stream.

local function stream_of(attachment) return string.match(attachment, '^(.*)%.') or '' end

-- Returns true if a lease is not on the stream through which it is changed. via: '*' for any
-- stream, '' for no stream, or the epoch of a stream of this broker.
local function is_on_other_stream(stream, via)
  return via ~= '*' and stream_of(stream) ~= (via ~= '' and broker_id .. '.' .. via or '')
end
