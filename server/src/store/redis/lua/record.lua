-- Record of one lock, which is read once and written once, before the reply.

local function unreadable(what) error({ err = 'SCHEMA the lock record has ' .. what }) end

-- Reads the record into the variables of state.lua, and additional fields for `field`.
local function load(...)
  local names, v = { ... }, call('HMGET', lock, 'v', 'f', 'u', 'h:1', 'q', 'z', 'e', ...)
  if v[1] and v[1] ~= SCHEMA then unreadable('version ' .. v[1]) end
  last_token = tonumber(v[2] or 0)
  known = { f = v[2], u = v[3], ['h:1'] = v[4], q = v[5], z = v[6], e = v[7] }
  for i = 1, #names do known[names[i]] = v[7 + i] end
  if v[3] then
    local n, top, used, limit, earliest, latest, closed, set, spare =
      string.match(v[3], '^(%d+)|(%d+)|(%d+)|(%d+)|(%d+)|(%d+)|(%d+)|(%d+)|(.*)$')
    closed_until, set_limit = tonumber(closed), tonumber(set)
    holders = { n = tonumber(n), top = tonumber(top), used = tonumber(used), limit = tonumber(limit),
      earliest = tonumber(earliest), latest = tonumber(latest), spare = spare }
  else
    holders = { n = 0, top = 1, used = 0, limit = EXCLUSIVE_WEIGHT, earliest = 0, latest = 0, spare = '' }
    local h = holder_at(1)
    if h then holders.n, holders.used, holders.earliest, holders.latest = 1, h.weight, h.expires, h.expires
    else holders.top = 0 end
  end
  if v[5] then
    local head, tail, n, until_ms, ms, heard, resume, brokers =
      string.match(v[5], '^(%d+)|(%d+)|(%d+)|(%d+)|(%d+)|(%d+)|(%d+)|(.*)$')
    queue = { head = tonumber(head), tail = tonumber(tail), n = tonumber(n), until_ms = tonumber(until_ms),
      ms = tonumber(ms), heard = tonumber(heard), resume = tonumber(resume), brokers = brokers }
  else
    queue = { head = 1, tail = 0, n = 0, until_ms = 0, ms = 0, heard = 0, resume = 0, brokers = '' }
  end
  if holders.top > HOLDERS_MAX then unreadable('too many slots') end
  released, expired = v[6] or '1|0', v[7] or '1|0'
end

-- Writes the changed fields. This is the last step: nothing that can fail may follow. A record
-- without a TTL gets one from the same command, unless it has a set limit, which is kept until it is
-- removed.
local function save()
  -- without its record the next token would be the time, which may still be smaller
  local h, last = holders, math.max(now, holders.latest, queue.until_ms, closed_until, last_token / 1000)
  if events then waiting().publish_changes() end
  if math.max(last, last_token) >= 2^53 then unreadable('a number that is none') end
  if is_queue_touched then
    changed.q = queue.n > 0 and string.format('%d|%d|%d|%d|%d|%d|%d|', queue.head, queue.tail, queue.n,
      queue.until_ms, queue.ms, queue.heard, queue.resume) .. queue.brokers
  end
  -- a holder in the first slot alone, under the limit of exclusive and shared locks, needs no field
  -- of sums
  local u = (closed_until > 0 or set_limit > 0
      or (h.top > 1 or h.limit ~= EXCLUSIVE_WEIGHT) and h.n + queue.n > 0)
    and string.format('%d|%d|%d|%d|%d|%d|%d|%d|', h.n, h.top, h.used, h.limit, h.earliest, h.latest,
      closed_until, set_limit) .. h.spare
  if u ~= known.u then changed.u = u end
  -- room for the fields that most commands write, because Lua copies a table that grows
  local sets, deletes = { 'v', SCHEMA, nil, nil, nil, nil, nil, nil, nil, nil, nil, nil }, nil
  local count = #sets
  for name, value in pairs(changed) do
    if value then
      sets[count + 1], sets[count + 2], count = name, value, count + 2
    else
      deletes = deletes or {}
      deletes[#deletes + 1] = name
    end
  end
  for i = 1, count, 1000 do call('HSET', lock, unpack(sets, i, math.min(i + 999, count))) end
  for i = 1, deletes and #deletes or 0, 1000 do call('HDEL', lock, unpack(deletes, i, math.min(i + 999, #deletes))) end
  if set_limit > 0 then return call('PERSIST', lock) end
  call('PEXPIRE', lock, int(last - now + IDLE_RECORD_TTL_MS))
end

-- Returns a reply, with the hand-offs of the command. Writes the changes before, so that an expiry
-- that was noticed is recorded with every reply.
local function reply(tag, ...)
  if next(changed) or is_queue_touched then save() end
  return { tag, now, more, hand_offs, ... }
end
