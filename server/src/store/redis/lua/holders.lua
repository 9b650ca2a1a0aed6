-- Holders of the lock, each in a slot. Holders above the first slot have index fields, so a lock
-- with one holder needs none.

local function holder_at(slot)
  if holder_cache[slot] ~= nil then return holder_cache[slot] end
  local text = slot <= holders.top and field('h:' .. slot)
  if not text or text == '' then return false end
  local lease, request, arguments, token, ttl, since, expires, weight, terms, position, attempts, entries,
    stream, owner = string.match(text, '^(%w+)|(%w+)|(%w+)|(%d+)|(%d+)|(%d+)|(%d+)|(%d+)|([^|]*)|(%d*)|([^|]*)|([^|]*)|([^|]*)|(.*)$')
  holder_cache[slot] = { slot = slot, lease = lease, request = request, arguments = arguments,
    token = token, ttl = ttl, since = since, expires = tonumber(expires), weight = weight,
    terms = terms, position = tonumber(position), attempts = attempts, entries = entries,
    stream = stream, owner = owner }
  return holder_cache[slot]
end

local function write_holder(h)
  changed[h.slot == 1 and 'h:1' or 'h:' .. h.slot] = h.lease .. '|' .. h.request .. '|' .. h.arguments .. '|'
    .. h.token .. '|' .. h.ttl .. '|' .. h.since .. '|' .. int(h.expires) .. '|' .. h.weight .. '|' .. h.terms .. '|'
    .. (h.position or '') .. '|' .. h.attempts .. '|' .. h.entries .. '|' .. h.stream .. '|' .. h.owner
end

local function hold_count(h)
  if h.entries == '' then return 1 end
  local _, others = string.gsub(h.entries, ';', ';')
  return 1 + others
end

-- Returns the holder of a lease, found by its index field l:<lease> above the first slot.
local function holder_of(lease)
  if holders.n == 0 then return nil end
  local first = holder_at(1)
  if first and first.lease == lease then return first end
  local slot = holders.top > 1 and field('l:' .. lease)
  return slot and holder_at(tonumber(slot))
end

-- Returns the holder of a request, found by its index field r:<request>: the slot of a holder, or
-- the queue position of a waiter.
local function holder_by(request)
  if holders.n == 0 then return nil end
  local first = holder_at(1)
  if first and first.request == request then return first end
  local r = field('r:' .. request)
  local slot = string.match(r or '', '^@(%d+)$')
  if slot then return holder_at(tonumber(slot)) end
  local w = r and waiting().read_waiter(tonumber(r))
  return w and w.slot and holder_at(w.slot)
end
