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

-- Returns the limit of spans, which no lease with a span of at most SPAN_MIN_MS needs to read.
local span_max, span_retry_ms
local function span_limit()
  if not span_max then
    ms_until_grants()
    -- without an era the least limit applies; in a cluster there is none
    local text = era_key and (era_text or '|span:0:0:0') or ''
    local before, after, at = string.match(text, '|span:(%d+):(%d+):(%d+)')
    local left = at and at - now or 0
    span_retry_ms = left > 0 and left or SPAN_RETRY_MS
    span_max = at and math.max(left > 0 and math.min(before, after) or after, SPAN_MIN_MS) or 2^53
  end
  return span_max
end

-- Returns the reply that rejects a command because the span of its lease is over the limit.
local function span_rejection()
  if next(changed) then save() end
  return { 'SPAN', now, span_retry_ms, hand_offs }
end

exports.has_lost_data_since, exports.span_limit = has_lost_data_since, span_limit
exports.era_rejection, exports.span_rejection = era_rejection, span_rejection
