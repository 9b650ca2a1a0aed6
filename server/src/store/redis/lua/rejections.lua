-- Losses of data, and the rejections of commands by the era and by the limit of spans.

-- Returns true if the store has lost data since this time, and with them perhaps writes about a
-- hold that began then.
local function has_lost_data_since(since_ms)
  ms_until_grants()
  return not grants_from_ms or tonumber(since_ms) < grants_from_ms
end

-- Returns the reply that rejects a command until grants are allowed.
local function era_rejection()
  local closed = ms_until_grants()
  if next(changed) then save() end
  return closed < 0 and { 'NOERA', now, hand_offs } or { 'RECOVERING', now, closed, hand_offs }
end

-- Returns the reply that rejects a command because the span of its lease is over the limit.
local function span_rejection()
  if next(changed) then save() end
  return { 'SPAN', now, span_retry_ms, hand_offs }
end

exports.has_lost_data_since = has_lost_data_since
exports.era_rejection, exports.span_rejection = era_rejection, span_rejection
