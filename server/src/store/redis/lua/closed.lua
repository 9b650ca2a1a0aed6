-- Whether the era allows grants. While it does not, nothing comes back that may have ended before the store
-- lost data: no repeat, no entry, no claim.

-- Milliseconds until grants are allowed; -1: never in this era.
local closed_ms, is_moving
local function grants_in()
  if not closed_ms then
    local era = era_key and call('GET', era_key)
    if not era_key then
      -- In a cluster the era is no key, or nothing could be done while its slot moves: it follows the
      -- id, 'era_id|era' (and perhaps '!': tell.lua). No id grants nothing, and an era that is elsewhere
      -- already is none.
      era_id, era = string.match(era_id, '^(%w*)|(.-)!?$')
      era = era_id ~= '' and redis.pcall('GET', era)
      is_moving = type(era) == 'string' and string.find(era, '|moving', 1, true)
    end
    local id, before = string.match(type(era) == 'string' and era or '', '^([^|]*)|(%d+)|')
    closed_ms = id == era_id and math.max(tonumber(before) - now, 0) or -1
  end
  -- a lock that is not known here may be where its slot was on its way to
  return is_moving and fence == 0 and -1 or closed_ms
end

-- The answer to what is refused until then.
local function refused_until(closed)
  if next(changed) then save() end
  return closed < 0 and { 'NOERA', now, hand_offs } or { 'RECOVERING', now, closed, hand_offs }
end
