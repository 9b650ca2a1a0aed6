-- Validity of grants: ttl, max_hold and the limit of spans.

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
  local rest, least = span_limit() - delay - EXPIRY_MARGIN_MS, math.min(ttl, CUT_TTL_MIN_MS)
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
  return h.token, h.validity or effective_ttl(h), h.since, hold_count(h), h.weight, holders.limit, queue.n, grace_of(h),
    (span_of(h))
end
