-- Renewal of a holder.

-- Renews a holder whose max_hold has not passed, and claims a provisional hand-off. Never shortens
-- the expiry.
local function extend(h)
  local is_claim = h.position
  if is_claim then
    waiting().dequeue(h.position, h.request)
    h.position = nil
    if h.slot > 1 then changed['r:' .. h.request] = '@' .. h.slot end
  end
  h.validity = effective_ttl(h)
  h.expires = math.max(h.expires, now + expiry(h.validity))
  holders.latest = math.max(holders.latest, h.expires)
  if is_claim then waiting().record_change('ACQUIRED', h) end
  if holders.n == 1 then holders.earliest = h.expires end
  write_holder(h)
end
