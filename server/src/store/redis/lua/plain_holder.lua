-- Reading of the text of a holder by position. The ids before its token have fixed lengths.

local TOKEN_AT, TTL_AT = 69, 86

-- Returns the text of a holder if it is that of this lease and token, otherwise false.
local function of_lease(text, lease, token)
  return text and string.sub(text, 1, #lease + 1) == lease .. '|'
    and string.sub(text, TOKEN_AT - 1, TTL_AT - 1) == '|' .. token .. '|' and text
end
