-- Plain case of acquire: an exclusive or shared request for a new lease without terms finds neither
-- holders nor waiters, tombstones or ends of its lease. A call under an existing lease has terms.
local new_token, since = int(now_us), int(now)
function plain(lock, lease, request, arguments, attempt, ttl, wait, rejoin, queue_max, owner, weight, limit, terms,
  under, stream, proposed)
  local span = expiry(ttl)
  if now > not_after or watched or terms ~= '' or proposed ~= '' or tonumber(limit) ~= EXCLUSIVE_WEIGHT
    or read_era() ~= 0 or is_moving or token_floor > 0 or span > SPAN_MIN_MS and span > span_limit() then
    return nil
  end
  local v = call('HMGET', lock, 'v', 'f', 'u', 'h:1', 'q', 'a', 'z:' .. lease, 'e:' .. lease)
  if v[1] and v[1] ~= SCHEMA or v[2] and tonumber(v[2]) >= now_us or v[3] or v[4] and v[4] ~= ''
    or v[5] or v[6] or v[7] or v[8] then
    return nil
  end
  stream = stream == '' and '' or broker_id .. '.' .. stream
  call('HSET', lock, 'v', SCHEMA, 'f', new_token, 'h:1', lease .. '|' .. request .. '|' .. arguments .. '|'
    .. new_token .. '|' .. ttl .. '|' .. since .. '|' .. int(now + span) .. '|' .. weight .. '|||' .. attempt .. '@'
    .. broker_id .. '||' .. stream .. '|' .. owner)
  call('PEXPIRE', lock, int(span + IDLE_RECORD_TTL_MS))
  return { 'GRANTED', now, 0, false, '', new_token, tonumber(ttl), since, 1, weight, EXCLUSIVE_WEIGHT, 0, '', span }
end
