-- How a lease begins, goes on and ends: its slot, its expiry, and the sums over all holders.
local function expiry(ttl) return ttl + math.floor(ttl / 5) + 250 end

-- The validity to announce: what max_hold leaves of the ttl. Nil if it leaves nothing.
local function announced(h)
  local max_hold = h.terms ~= '' and tonumber(string.match(h.terms, '^%d+')) or 0
  if max_hold == 0 then return h.ttl end
  local left = h.since + max_hold - now
  return left > 0 and math.min(h.ttl, left) or nil
end

-- How long after a break of its stream a lease lapses; '' for never.
local function grace_of(h) return h.terms ~= '' and string.match(h.terms, '(%d*),%d$') or '' end

-- A grant as its holder is told of it.
local function shown_grant(h)
  return h.token, announced(h), h.since, hold_count(h), h.weight, holders.limit, queue.n, grace_of(h)
end

-- The one place where a lock is granted. `place`: provisionally, to fall back to that place. `token`:
-- with this one.
local function grant(w, place, token)
  fence = math.max(fence + 1, now_us)
  if token then fence = token end
  changed.f = int(fence)
  local all = holders
  local slot = all.spare ~= '' and string.match(all.spare, '%d+$')
  if slot then
    all.spare = string.sub(all.spare, 1, -#slot - 2)
  else
    all.top = all.top + 1
  end
  local h = { slot = tonumber(slot or all.top), lease = w.lease, request = w.request,
    arguments = w.arguments, token = changed.f, ttl = w.ttl, since = int(now), weight = w.weight,
    terms = w.terms, place = place, attempts = w.attempts, entries = '', stream = w.stream,
    owner = w.owner }
  local life = expiry(announced(h))
  h.expires = now + (place and math.min(life, CLAIM) or life)
  all.n, all.used = all.n + 1, all.used + h.weight
  all.earliest = all.n == 1 and h.expires or math.min(all.earliest, h.expires)
  all.latest = math.max(all.latest, h.expires)
  held[h.slot] = h
  write_holder(h)
  if h.slot > 1 then
    changed['l:' .. h.lease] = h.slot
    if not place then changed['r:' .. h.request] = '@' .. h.slot end
  end
  if not place then note('ACQUIRED', h) end
  return h
end

local function free(h)
  if has_flag(h, REVOKED) then changed['k:' .. h.lease] = false end
  if h.entries ~= '' then
    for request in string.gmatch(h.entries, '(%w+):%w+:%d+:') do changed['r:' .. request] = false end
  end
  if h.place then drop(h.place, h.request) elseif h.slot > 1 then changed['r:' .. h.request] = false end
  remove(h)
end

-- Renews a holder, and claims a provisional hand-off. Never shortens. False past max_hold.
local function extend(h, ttl)
  local validity = announced(h)
  if not validity then return false end
  if ttl then
    h.ttl = ttl
    validity = announced(h)
  end
  local is_claim = h.place
  if is_claim then
    drop(h.place, h.request)
    h.place = nil
    if h.slot > 1 then changed['r:' .. h.request] = '@' .. h.slot end
  end
  h.expires = math.max(h.expires, now + expiry(validity))
  holders.latest = math.max(holders.latest, h.expires)
  if is_claim then note('ACQUIRED', h) end
  if holders.n == 1 then holders.earliest = h.expires end
  write_holder(h)
  return true
end
