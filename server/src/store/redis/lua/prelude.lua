-- Constants, the clock, the state of one lock, and the run of a verb. scripts.rs inserts SCHEMA,
-- and the values of the constants of the specification (server/src/lock.rs) wherever they are
-- named.
--
-- KEYS: lock, era, more locks (run). ARGV: broker ('…*': record_change), not_after_ms, era_id (in a
-- cluster: era_check.lua), then the arguments of the verb, for each lock
--
-- In all scripts `h` is a holder, `e` an entry of a holder, and `w` a waiter.
local SCAN_MAX, GRANTS_MAX, ATTEMPT_LEN, REPORTED_SLOTS_MAX, EXPIRATIONS_MAX = 256, 64, 31, 256, 128
local call = redis.call
local lock, era_key = KEYS[1], KEYS[2]
local broker_id, watched, not_after, era_id = string.sub(ARGV[1], 1, 16), #ARGV[1] > 16, tonumber(ARGV[2]), ARGV[3]
local t = redis.call('TIME')
local now_us = t[1] * 1000000 + t[2]
local now = math.floor(now_us / 1000)
-- end of the closure of the lock, and the limit set by SetLockLimit; 0 for none
local closed_until, set_limit
-- fields that were read, and fields that save() will write: a value, or false for a missing field
local known, changed, is_queue_touched, more, hand_offs, events
-- holders that were read, by slot; and the lease that leaves its stream (attachment.lua)
local holder_cache, moved
local last_token, holders, queue, released, expired

-- Functions that few runs need, which rare() returns by name. Lua creates the functions of a script
-- again in each run, which takes longer than their work. So create_rare() (scripts.rs), which has
-- these functions, runs only when the first of them is needed.
local exports, create_rare
local function rare()
  if not exports then
    exports = {}
    create_rare()
  end
  return exports
end

-- Formats an integer. Lua's default number format is slow and exact only below 10^14, less than a
-- token.
local function int(number) return string.format('%d', number) end

-- Resets the state for another lock, of which no record has been read.
local function reset(key)
  lock, closed_until, set_limit = key, 0, 0
  known, changed, is_queue_touched, more, hand_offs, events, holder_cache, moved = {}, {}, false, 0, {}, nil, {}, ''
end

-- Returns a field of the record as the verb has left it, or false if the field is missing.
local function field(name)
  if changed[name] ~= nil then return changed[name] end
  if known[name] == nil then known[name] = call('HGET', lock, name) end
  return known[name]
end

-- Reads fields of the record with one command.
local function read_fields(names)
  local values = call('HMGET', lock, unpack(names))
  for i = 1, #names do known[names[i]] = values[i] end
end

-- Runs the verb, for one lock or for several locks in turn, with one reading of the clock. A
-- failure for one of several locks has written nothing to its record, and does not stop the others.
local function run(verb)
  local count = math.max(#KEYS - 1, 1)
  if count == 1 then
    reset(lock)
    return verb(unpack(ARGV, 4))
  end
  local replies, each = {}, (#ARGV - 3) / count
  for i = 1, count do
    reset(KEYS[i == 1 and 1 or i + 1])
    local done, reply = pcall(verb, unpack(ARGV, 4 + (i - 1) * each, 3 + i * each))
    if not done then
      -- same text as without pcall, for which some servers return a table and others the text
      local text = type(reply) == 'table' and reply.err or reply
      reply = { 'ERROR', string.find(text, '^user_script') and 'ERR ' .. text or text }
    end
    replies[i] = reply
  end
  return replies
end
