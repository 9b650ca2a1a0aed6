-- State of one lock in the verbs, which begins anew for each lock of a run.

local SCAN_MAX, GRANTS_MAX, ATTEMPT_LEN, REPORTED_SLOTS_MAX, EXPIRATIONS_MAX = 256, 64, 31, 256, 128
local lock
-- end of the closure of the lock, and the limit set by SetLockLimit; 0 for none
local closed_until, set_limit
-- fields that were read, and fields that save() will write: a value, or false for a missing field
local known, changed, is_queue_touched, more, hand_offs, events
-- holders that were read, by slot; and the lease that leaves its stream (attachment.lua)
local holder_cache, moved
local last_token, holders, queue, released, expired

-- Functions that only some runs need. Lua creates the functions of a script again in each run, which
-- takes longer than their work. So create_waiting() and create_rare() (scripts.rs), which have these
-- functions, run only when the first of them is needed.
local exports, create_waiting, create_rare
-- Returns the functions for the queue and for messages, by name.
local function waiting()
  if not exports then
    exports = {}
    create_waiting()
  end
  return exports
end

-- Returns these and all other functions by name.
local function rare()
  local all = waiting()
  if create_rare then
    create_rare()
    create_rare = nil
  end
  return all
end

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
