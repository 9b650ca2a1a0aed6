-- Plain case of attach: the lease has the lock alone, without terms and entries, nobody waits, and the
-- lease comes from no stream or from an older one of this broker.
function plain(lock, lease, token, stream)
  local v = call('HMGET', lock, 'v', 'f', 'u', 'h:1', 'q')
  local h = now <= not_after and not v[3] and not v[5] and of_lease(v[4], lease, token)
  if not h or v[1] ~= SCHEMA or tonumber(v[2]) > now_us then return nil end
  local ttl, since, expires, weight, from_at, from, owner_at =
    string.match(h, '^(%d+)|(%d+)|(%d+)|(%d+)|||[^|]*||()([^|]*)()|', TTL_AT)
  local span, requested = ttl and expiry(ttl), broker_id .. '.' .. stream
  if not span or span > SPAN_MIN_MS and span > span_limit() or now >= tonumber(expires)
    or from ~= '' and (string.sub(from, 1, 16) ~= broker_id
    or tonumber(string.match(from, '%d+$')) >= tonumber(string.match(stream, '%d+$'))) then
    return nil
  end
  local is_moved = from ~= '' and stream_of(from) ~= stream_of(requested)
  call('HSET', lock, 'h:1', string.sub(h, 1, from_at - 1) .. requested .. string.sub(h, owner_at))
  call('PEXPIRE', lock, int(expires - now + IDLE_RECORD_TTL_MS))
  return { 'ATTACHED', now, 0, false, is_moved and lease .. '.' .. from or '', token,
    tonumber(ttl), since, 1, weight, EXCLUSIVE_WEIGHT, 0, '', span }
end
