-- The holder: granting, extending, and remembering how leases ended.
local function write_holder()
  changed.h = holder and table.concat({ holder.lease, holder.request, holder.arguments,
    fmt(holder.token), fmt(holder.ttl), fmt(holder.since), holder.place and fmt(holder.place) or '',
    holder.attempts, holder.owner }, '|') or ''
  if holder then changed.x = fmt(holder.expires) end
end

local function expiry(ttl) return ttl + math.floor(ttl / 5) + 250 end

-- Milliseconds until grants are allowed; -1: never in this era.
local closed_ms
local function grants_in()
  if not closed_ms then
    local id, before = string.match(call('GET', era_key) or '', '^([^|]*)|(%d+)|')
    closed_ms = id == era_id and math.max(tonumber(before) - now, 0) or -1
  end
  return closed_ms
end

-- The one place where a lock is granted. `place`: provisionally, to fall back to that place.
local function grant(w, place)
  fence = math.max(fence + 1, now_us)
  changed.f = fmt(fence)
  local life = expiry(w.ttl)
  if place then life = math.min(life, CLAIM) end
  holder = { lease = w.lease, request = w.request, arguments = w.arguments, token = fence, ttl = w.ttl,
    since = now, place = place, attempts = w.attempts, owner = w.owner, expires = now + life }
  write_holder()
end

-- Renews the holder, and claims a provisional hand-off. Never shortens.
local function extend(ttl)
  if holder.place then
    drop(holder.place, holder.request)
    holder.place = nil
  end
  holder.ttl = ttl or holder.ttl
  holder.expires = math.max(holder.expires, now + expiry(holder.ttl))
  write_holder()
end

local function kept_released(seq, at, last) return seq + RELEASED_MAX > last or at + TOMBSTONE > now end

local function kept_expired(seq, at, last) return seq + EXPIRED_MAX > last and at + EXPIRED_MS > now end

-- Whether an ended lease's stamp says that it is still remembered.
local function remembered(stamp, counters, kept)
  local seq, at = string.match(stamp or '', '^(%d+)|(%d+)$')
  return seq and kept(tonumber(seq), tonumber(at), tonumber(string.match(counters, '%d+$')))
end

-- Drops up to 16 of the oldest ended leases that need not be remembered; returns the first kept.
local function forget(kind, first, last, kept)
  local names, stamps = {}, {}
  for seq = first, math.min(first + 15, last - 1) do names[#names + 1] = kind .. 'q:' .. fmt(seq) end
  if #names == 0 then return first end
  local oldest = call('HMGET', lock, unpack(names))
  for i = 1, #names do stamps[i] = kind .. ':' .. string.sub(oldest[i], 1, 26) end
  local known = call('HMGET', lock, unpack(stamps))
  for i = 1, #names do
    if kept(first, tonumber(string.sub(oldest[i], 28)), last) then break end
    changed[names[i]] = false
    local latest = string.match(known[i] or '', '^(%d+)|') == fmt(first)
    if latest and changed[stamps[i]] == nil then changed[stamps[i]] = false end
    first = first + 1
  end
  return first
end

-- Remembers an ended lease, and every eighth time forgets old ones; returns the counters.
local function remember(kind, counters, lease, at, kept)
  local first, last = string.match(counters, '^(%d+)|(%d+)$')
  first, last = tonumber(first), last + 1
  changed[kind .. ':' .. lease] = fmt(last) .. '|' .. fmt(at)
  changed[kind .. 'q:' .. fmt(last)] = lease .. '|' .. fmt(at)
  if last % 8 == 0 then first = forget(kind, first, last, kept) end
  changed[kind] = fmt(first) .. '|' .. fmt(last)
  return changed[kind]
end
