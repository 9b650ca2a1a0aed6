-- Plain case of release: the lease has the lock alone, without terms and entries, nobody waits, and no
-- records of ended leases are due to be deleted.
function plain(lock, lease, token, what, via, notify)
  if watched or what ~= '' or notify == '1' then return nil end
  local v = call('HMGET', lock, 'v', 'f', 'u', 'h:1', 'q', 'z')
  if v[1] ~= SCHEMA or v[3] or not v[4] or v[5] or tonumber(v[2]) > now_us then return nil end
  local of, has, expires, stream =
    string.match(v[4], '^(%w+)|%w+|%w+|(%d+)|%d+|%d+|(%d+)|%d+|||[^|]*||([^|]*)|')
  if of ~= lease or has ~= token or now >= tonumber(expires) or is_on_other_stream(stream, via) then
    return nil
  end
  local first, last, partial = string.match(v[6] or '1|0', '^(%d+)|(%d+)(.*)$')
  last = last + 1
  if last % 8 == 0 then return nil end
  call('HSET', lock, 'h:1', '', 'z', first .. '|' .. last .. partial, 'z:' .. lease, last .. '|' .. int(now),
    'zq:' .. last, lease .. '|' .. int(now))
  call('PEXPIRE', lock, IDLE_RECORD_TTL_MS)
  return { 'NOW', now, 0, {}, 0 }
end
