-- Plain case of attach: the lease has the lock alone, without terms and entries, nobody waits, and the
-- lease comes from an older stream of this broker.
function plain(lock, lease, token, stream)
  local v = call('HMGET', lock, 'v', 'f', 'u', 'h:1', 'q')
  if now > not_after or v[1] ~= SCHEMA or v[3] or not v[4] or v[5] or tonumber(v[2]) > now_us then return nil end
  local head, of, has, ttl, since, expires, weight, from, owner =
    string.match(v[4], '^((%w+)|%w+|%w+|(%d+)|(%d+)|(%d+)|(%d+)|(%d+)|||[^|]*||)([^|]+)(|.*)$')
  local span, requested = head and expiry(ttl), broker_id .. '.' .. stream
  if of ~= lease or has ~= token or span > SPAN_MIN_MS or now >= tonumber(expires)
    or string.sub(from, 1, 16) ~= broker_id
    or tonumber(string.match(from, '%d+$')) >= tonumber(string.match(stream, '%d+$')) then
    return nil
  end
  call('HSET', lock, 'h:1', head .. requested .. owner)
  call('PEXPIRE', lock, int(expires - now + IDLE_RECORD_TTL_MS))
  return { 'ATTACHED', now, 0, {}, stream_of(from) == stream_of(requested) and '' or lease .. '.' .. from, token,
    tonumber(ttl), since, 1, weight, EXCLUSIVE_WEIGHT, 0, '', span }
end
