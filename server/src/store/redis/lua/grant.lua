-- Grant of the lock.

-- Grants the lock. All grants are made here. With `position` the grant is provisional and returns
-- to that queue position if it lapses. With `token` the grant has that token. The era was read
-- before, because it must allow grants.
local function grant(w, position, token)
  last_token = math.max(last_token + 1, now_us, token_floor + 1)
  if token then last_token = token end
  changed.f = int(last_token)
  if closed_until > 0 then closed_until, changed.c = 0, false end
  local all = holders
  local slot = all.spare ~= '' and string.match(all.spare, '%d+$')
  if slot then
    all.spare = string.sub(all.spare, 1, -#slot - 2)
  else
    all.top = all.top + 1
  end
  local h = { slot = tonumber(slot or all.top), lease = w.lease, request = w.request,
    arguments = w.arguments, token = changed.f, ttl = w.ttl, since = int(now), weight = w.weight,
    terms = w.terms, position = position, attempts = w.attempts, entries = '', stream = w.stream,
    owner = w.owner }
  h.validity = effective_ttl(h)
  local life = expiry(h.validity)
  h.expires = now + (position and math.min(life, PROVISIONAL_GRANT_MS) or life)
  all.n, all.used = all.n + 1, all.used + h.weight
  all.earliest = all.n == 1 and h.expires or math.min(all.earliest, h.expires)
  all.latest = math.max(all.latest, h.expires)
  holder_cache[h.slot] = h
  write_holder(h)
  if h.slot > 1 then
    changed['l:' .. h.lease] = h.slot
    if not position then changed['r:' .. h.request] = '@' .. h.slot end
  end
  if watched and not position then waiting().record_change('ACQUIRED', h) end
  return h
end
