-- Plain case of release: the lease has the lock alone, without terms and entries, nobody waits, and no
-- records of partial releases are due to be deleted.
local released_at, kept_ms = int(now), int(IDLE_RECORD_TTL_MS)
function plain(lock, lease, token, what, via, notify)
  if watched or what ~= '' or notify == '1' then return nil end
  local v = call('HMGET', lock, 'v', 'f', 'u', 'h:1', 'q', 'z')
  local h = not v[3] and not v[5] and of_lease(v[4], lease, token)
  if not h or v[1] ~= SCHEMA or tonumber(v[2]) > now_us then return nil end
  local expires, stream = string.match(h, '^%d+|%d+|(%d+)|%d+|||[^|]*||([^|]*)|', TTL_AT)
  if not expires or now >= tonumber(expires) or is_on_other_stream(stream, via) then return nil end
  local first, last, partial = string.match(v[6] or '1|0', '^(%d+)|(%d+)(.*)$')
  last = int(last + 1)
  if last % 8 == 0 then
    if partial ~= '' then return nil end
    local _, prunable = create_pruning()
    local read, names = function(names) return call('HMGET', lock, unpack(names)) end
    first, names = prunable('z', tonumber(first), tonumber(last), read)
    if names[1] then call('HDEL', lock, unpack(names)) end
  end
  call('HSET', lock, 'h:1', '', 'z', first .. '|' .. last .. partial, 'z:' .. lease, last .. '|' .. released_at,
    'zq:' .. last, lease .. '|' .. released_at)
  call('PEXPIRE', lock, kept_ms)
  return { 'NOW', now, 0, false, 0 }
end
