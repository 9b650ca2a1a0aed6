-- Plain case of renew: the lease has the lock alone, without terms and entries, nobody waits, and its
-- expiry does not move back.
function plain(lock, lease, token, ttl, via, is_delivered)
  if now > not_after or is_delivered == '1' then return nil end
  local v = call('HMGET', lock, 'v', 'f', 'u', 'h:1', 'q')
  if v[1] ~= SCHEMA or v[3] or not v[4] or v[5] or tonumber(v[2]) > now_us then return nil end
  local head, of, has, held_ttl, since, expires, tail, weight, stream =
    string.match(v[4], '^((%w+)|%w+|%w+|(%d+)|)(%d+)|(%d+)|(%d+)(|(%d+)|||[^|]*||([^|]*)|.*)$')
  if ttl == '' then ttl = held_ttl end
  local span = head and expiry(ttl)
  if of ~= lease or has ~= token or span > SPAN_MIN_MS or now >= tonumber(expires) or now + span < tonumber(expires)
    or is_on_other_stream(stream, via) then
    return nil
  end
  call('HSET', lock, 'h:1', head .. ttl .. '|' .. since .. '|' .. int(now + span) .. tail)
  call('PEXPIRE', lock, int(span + IDLE_RECORD_TTL_MS))
  return { 'EXTENDED', now, 0, {}, token, tonumber(ttl), since, 1, weight, EXCLUSIVE_WEIGHT, 0, '', span }
end
