-- Reading of the era, once per run.

-- Returns the milliseconds until the era allows grants, or -1 if it never allows them. Reads also
-- the floor of tokens, 0 for none, and whether the slot of a cluster is moving.
local closed_ms, is_moving, grants_from_ms, era_text, token_floor
local function read_era()
  if closed_ms then return closed_ms end
  local era = era_key and call('GET', era_key)
  if not era_key then
    -- In a cluster the key of the era is not in KEYS: while its slot moves, no command with several
    -- keys could run. The key follows the era id instead: 'era_id|key', perhaps with '!'
    -- (messages.lua). An empty era id allows no grants. An era that has already moved counts as
    -- missing.
    era_id, era = string.match(era_id, '^(%w*)|(.-)!?$')
    era = era_id ~= '' and redis.pcall('GET', era)
    is_moving = type(era) == 'string' and string.find(era, '|moving', 1, true)
  end
  era_text = type(era) == 'string' and era
  local id, before = string.match(era_text or '', '^([^|]*)|(%d+)|')
  grants_from_ms = id == era_id and tonumber(before)
  closed_ms = grants_from_ms and math.max(grants_from_ms - now, 0) or -1
  -- few eras have a floor, so no pattern searches for its digits
  local _, at = string.find(era_text or '', '|token:', 1, true)
  token_floor = at and tonumber(string.match(era_text, '^%d+', at + 1)) or 0
  return closed_ms
end

-- Returns the limit of spans, which no lease with a span of at most SPAN_MIN_MS needs to read.
local span_max, span_retry_ms
local function span_limit()
  if not span_max then
    read_era()
    -- without an era the least limit applies; in a cluster there is none
    local text = era_key and (era_text or '|span:0:0:0') or ''
    local before, after, at = string.match(text, '|span:(%d+):(%d+):(%d+)')
    local left = at and at - now or 0
    span_retry_ms = left > 0 and left or SPAN_RETRY_MS
    span_max = at and math.max(left > 0 and math.min(before, after) or after, SPAN_MIN_MS) or 2^53
  end
  return span_max
end
