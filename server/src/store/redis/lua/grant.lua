-- Grant, renewal and removal of a holder: its slot, its expiry, and the sums over all holders.

local function expiry(ttl) return ttl + math.floor(ttl / EXPIRY_DIVISOR) + EXPIRY_MARGIN_MS end

-- Returns the time for which a lease may be held, in ms; 0 if there is no such bound.
local function max_hold_of(h) return h.terms ~= '' and tonumber(string.match(h.terms, '^%d+')) or 0 end

-- Returns the span of a lease or waiter: the time for which the lease can block its lock after a
-- grant or renewal. Also returns its lock_delay.
local function span_of(w)
  local delay = w.terms ~= '' and string.match(w.terms, '^%d+,(%d+)') or 0
  return expiry(w.ttl) + delay, delay
end

-- Returns the ttl of a lease or waiter, cut by the limit of spans but not below CUT_TTL_MIN_MS, and
-- true if the span is then within the limit.
local function cut_ttl(w)
  local ttl, span, delay = tonumber(w.ttl), span_of(w)
  if span <= SPAN_MIN_MS then return ttl, true end
  local rest, least = rare().span_limit() - delay - EXPIRY_MARGIN_MS, math.min(ttl, CUT_TTL_MIN_MS)
  local longest = rest - math.floor((rest + 1) / (EXPIRY_DIVISOR + 1))
  return math.min(ttl, math.max(longest, least)), longest >= least
end

-- Returns true if a grant or renewal of a lease or waiter can have a span within the limit.
local function fits_span(w)
  local _, fits = cut_ttl(w)
  return fits
end

-- Returns the validity to announce, which is the ttl cut by the limit of spans and by max_hold. Nil
-- if max_hold has passed.
local function effective_ttl(h)
  local ttl, max_hold = cut_ttl(h), max_hold_of(h)
  if max_hold == 0 then return ttl end
  local left = h.since + max_hold - now
  return left > 0 and math.min(ttl, left) or nil
end

-- Returns the disconnect grace of a lease, after which it is released when its stream breaks; ''
-- for none.
local function grace_of(h) return h.terms ~= '' and string.match(h.terms, '(%d*),%d$') or '' end

-- Returns the fields of a grant as its holder receives them.
local function grant_fields(h)
  return h.token, effective_ttl(h), h.since, hold_count(h), h.weight, holders.limit, queue.n, grace_of(h),
    (span_of(h))
end

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
  local life = expiry(effective_ttl(h))
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
  if watched and not position then rare().record_change('ACQUIRED', h) end
  return h
end

local function free_holder(h)
  if has_flag(h, REVOKED) then changed['k:' .. h.lease] = false end
  if h.entries ~= '' then
    for request in string.gmatch(h.entries, '(%w+):%w+:%d+:') do changed['r:' .. request] = false end
  end
  if h.position then rare().dequeue(h.position, h.request) elseif h.slot > 1 then changed['r:' .. h.request] = false end
  remove(h)
end

-- Renews a holder whose max_hold has not passed, and claims a provisional hand-off. Never shortens
-- the expiry.
local function extend(h)
  local is_claim = h.position
  if is_claim then
    rare().dequeue(h.position, h.request)
    h.position = nil
    if h.slot > 1 then changed['r:' .. h.request] = '@' .. h.slot end
  end
  h.expires = math.max(h.expires, now + expiry(effective_ttl(h)))
  holders.latest = math.max(holders.latest, h.expires)
  if is_claim then rare().record_change('ACQUIRED', h) end
  if holders.n == 1 then holders.earliest = h.expires end
  write_holder(h)
end
