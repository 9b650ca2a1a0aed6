-- Arguments and clock of a run, of one lock or of several. scripts.rs inserts SCHEMA, and the values
-- of the constants of the specification (server/src/lock.rs) wherever they are named.
--
-- KEYS: lock, era, more locks (run.lua). ARGV: broker ('…*': record_change), not_after_ms, era_id (in
-- a cluster: read_era.lua), then the arguments of the verb, for each lock
--
-- In all scripts `h` is a holder, `e` an entry of a holder, and `w` a waiter.
local call = redis.call
local era_key = KEYS[2]
local broker_id, watched, not_after, era_id = string.sub(ARGV[1], 1, 16), #ARGV[1] > 16, tonumber(ARGV[2]), ARGV[3]
local t = redis.call('TIME')
local now_us = t[1] * 1000000 + t[2]
local now = math.floor(now_us / 1000)

-- Formats an integer. Lua's default number format is slow and exact only below 10^14, less than a
-- token.
local function int(number) return string.format('%d', number) end

-- Returns the time for which the record of a lease with this ttl blocks the lock.
local function expiry(ttl) return ttl + (ttl - ttl % EXPIRY_DIVISOR) / EXPIRY_DIVISOR + EXPIRY_MARGIN_MS end

-- Handles the plain case of the verb, in which nothing is recorded that most locks do not have
-- (plain_*.lua). Returns nil in every other case, and then has written nothing: the verb itself
-- decides these cases. Lua creates all functions of a script in each run, which takes longer than
-- the work of most verbs, and this function needs few of them.
local plain
