-- Plain case of renew: the lease has the lock alone, without terms and entries, nobody waits, and its
-- expiry does not move back.
function plain(lock, lease, token, ttl, via, is_delivered)
  if now > not_after or is_delivered == '1' then return nil end
  local v = call('HMGET', lock, 'v', 'f', 'u', 'h:1', 'q')
  local h = not v[3] and not v[5] and of_lease(v[4], lease, token)
  if not h or v[1] ~= SCHEMA or tonumber(v[2]) > now_us then return nil end
  local held_ttl, since, expires, weight_at, weight, stream =
    string.match(h, '^(%d+)|(%d+)|(%d+)()|(%d+)|||[^|]*||([^|]*)|', TTL_AT)
  if ttl == '' then ttl = held_ttl end
  local span = held_ttl and expiry(ttl)
  if not span or span > SPAN_MIN_MS and span > span_limit() or now >= tonumber(expires)
    or now + span < tonumber(expires) or is_on_other_stream(stream, via) then
    return nil
  end
  call('HSET', lock, 'h:1', string.sub(h, 1, TTL_AT - 1) .. ttl .. '|' .. since .. '|' .. int(now + span)
    .. string.sub(h, weight_at))
  call('PEXPIRE', lock, int(span + IDLE_RECORD_TTL_MS))
  return { 'EXTENDED', now, 0, false, token, tonumber(ttl), since, 1, weight, EXCLUSIVE_WEIGHT, 0, '', span }
end
