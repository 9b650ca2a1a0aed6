-- Shared by all verbs: the constants, the one clock, and one lock's record, read once.
-- KEYS: lock, era. ARGV: broker, not_after_ms, era_id, then the verb's own.
local SILENT, STALL, CLAIM, KEEP, TOMBSTONE = 6000, 3000, 3000, 300000, 2000
local RELEASED_MAX, EXPIRED_MAX, EXPIRED_MS = 16, 1000, 60000
local SCAN_MAX, ATTEMPTS_MAX, ATTEMPT_LEN = 256, 8, 31
local call = redis.call
local lock, era_key = KEYS[1], KEYS[2]
local me, not_after, era_id = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local t = redis.call('TIME')
local now_us = t[1] * 1000000 + t[2]
local now = math.floor(now_us / 1000)
-- what save() will write: a value, or false to delete the field
local changed, touched_queue, more, hand_offs = {}, false, 0, {}
local fence, holder, queue, released, expired

local function fmt(n) return string.format('%.0f', n) end

local function field(name)
  if changed[name] ~= nil then return changed[name] end
  return call('HGET', lock, name)
end

-- Fills fence, holder, queue, released and expired; returns the fields asked for besides.
local function load(...)
  local v = call('HMGET', lock, 'v', 'f', 'h', 'x', 'q', 'z', 'e', ...)
  if v[1] and v[1] ~= '1' then error({ err = 'SCHEMA the lock record has version ' .. v[1] }) end
  fence = tonumber(v[2] or 0)
  if v[3] and v[3] ~= '' then
    local lease, request, arguments, token, ttl, since, place, attempts, owner =
      string.match(v[3], '^(%w+)|(%w+)|(%w+)|(%d+)|(%d+)|(%d+)|(%d*)|([^|]*)|(.*)$')
    holder = { lease = lease, request = request, arguments = arguments, token = tonumber(token),
      ttl = tonumber(ttl), since = tonumber(since), place = tonumber(place), attempts = attempts,
      owner = owner, expires = tonumber(v[4]) }
  end
  if v[5] then
    local head, tail, n, until_ms, ms, heard, resume, brokers =
      string.match(v[5], '^(%d+)|(%d+)|(%d+)|(%d+)|(%d+)|(%d+)|(%d+)|(.*)$')
    queue = { head = tonumber(head), tail = tonumber(tail), n = tonumber(n),
      until_ms = tonumber(until_ms), ms = tonumber(ms), heard = tonumber(heard),
      resume = tonumber(resume), brokers = brokers }
  else
    queue = { head = 1, tail = 0, n = 0, until_ms = 0, ms = 0, heard = 0, resume = 0, brokers = '' }
  end
  released, expired = v[6] or '1|0', v[7] or '1|0'
  return v[8], v[9], v[10], v[11]
end

-- Writes what changed. A record without a TTL gets one by the same command.
local function save()
  if touched_queue then
    changed.q = queue.n > 0 and table.concat({ fmt(queue.head), fmt(queue.tail), fmt(queue.n),
      fmt(queue.until_ms), fmt(queue.ms), fmt(queue.heard), fmt(queue.resume), queue.brokers }, '|')
  end
  local sets, deletes = { 'v', '1' }, {}
  for name, value in pairs(changed) do
    if value then
      sets[#sets + 1] = name
      sets[#sets + 1] = value
    else
      deletes[#deletes + 1] = name
    end
  end
  call('HSET', lock, unpack(sets))
  if #deletes > 0 then call('HDEL', lock, unpack(deletes)) end
  local horizon = math.max(now, holder and holder.expires or 0, queue.until_ms)
  call('PEXPIRE', lock, horizon - now + KEEP)
end
