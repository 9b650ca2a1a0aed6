-- Shared by all verbs: the constants, the one clock, and what is known of the one lock. SCHEMA: scripts.rs.
-- KEYS: lock, era, more locks (run.lua). ARGV: broker ('…*': watch.lua), not_after_ms, era_id (in a
-- cluster: closed.lua), then what the verb takes, for each lock
local SILENT, STALL, CLAIM, KEEP, SET_KEEP, TOMBSTONE = 6000, 3000, 3000, 300000, 86400000, 2000
local RELEASED_MAX, EXPIRED_MAX, EXPIRED_MS = 16, 1000, 60000
local SCAN_MAX, GRANTS_MAX, ATTEMPT_LEN, WHOLE = 256, 64, 31, 1073741824
local HOLDERS_MAX, ENTRIES_MAX, ATTEMPTS_MAX, TOLD_SLOTS_MAX, ENDS_MAX = 1000, 64, 8, 256, 128
local call = redis.call
local lock, era_key = KEYS[1], KEYS[2]
local me, watched, not_after, era_id = string.sub(ARGV[1], 1, 16), #ARGV[1] > 16, tonumber(ARGV[2]), ARGV[3]
local t = redis.call('TIME')
local now_us = t[1] * 1000000 + t[2]
local now = math.floor(now_us / 1000)
-- until when a lock_delay closes the lock, and the limit that SetLockLimit has set; 0 for none
local closed_until, set_limit
-- what was read, and what save() will write: a value, or false where there is none
local known, changed, touched_queue, more, hand_offs, events
-- the holders that were read, by slot, and a lease that is taken off a stream (stream.lua)
local held, moved
local fence, holders, queue, released, expired, holder_at, note, tell_watchers

-- Lua's own way to write a number is slow, and exact below 10^14 only: less than a token.
local function int(number) return string.format('%d', number) end

-- Forgets the lock before; no record was read.
local function begin(key)
  lock, closed_until, set_limit = key, 0, 0
  known, changed, touched_queue, more, hand_offs, events, held, moved = {}, {}, false, 0, {}, {}, {}, ''
end
