-- Requests: their attempts, the tombstones of those that were cancelled or released, and their
-- entries in a holder.

local function append_own_attempt(attempts, attempt)
  return (attempts == '' and '' or attempts .. ',') .. attempt .. '@' .. broker_id
end

-- Appends an attempt to the list of a holder, as its newest attempt.
local function add_attempt(attempts, attempt)
  if string.find(attempts, attempt, 1, true) then return attempts end
  if #attempts + 1 < ATTEMPTS_MAX * ATTEMPT_LEN then return append_own_attempt(attempts, attempt) end
  if string.sub(attempts, 1, 13) ~= UNLISTED then
    attempts = UNLISTED .. string.sub(attempts, 14)
  elseif #attempts + 1 > ATTEMPTS_MAX * ATTEMPT_LEN then
    attempts = string.sub(attempts, 1, ATTEMPT_LEN) .. string.sub(attempts, 2 * ATTEMPT_LEN + 1)
  end
  return append_own_attempt(attempts, attempt)
end

-- Appends an attempt to the list of a waiter, as its newest attempt. If the list is full, attempts
-- of brokers that are gone are removed first. Returns nil if there is still no room.
local function add_waiter_attempt(attempts, attempt)
  if string.find(attempts, attempt, 1, true) then return attempts end
  if #attempts + 1 >= ATTEMPTS_MAX * ATTEMPT_LEN then
    local left = {}
    for known in string.gmatch(attempts, '[^,]+') do
      local _, is_gone = broker_liveness(broker_of(known), 0)
      if not is_gone then left[#left + 1] = known end
    end
    if #left == ATTEMPTS_MAX then return nil end
    attempts = table.concat(left, ',')
  end
  return append_own_attempt(attempts, attempt)
end

-- Returns the list without the attempt, or nil if the list does not contain it.
local function remove_attempt(attempts, attempt)
  local at = string.find(attempts, attempt, 1, true)
  if not at then return nil end
  local left = string.sub(attempts, 1, at - 1) .. string.sub(attempts, at + ATTEMPT_LEN)
  return string.sub(left, -1) == ',' and string.sub(left, 1, -2) or left
end

-- Tombstones of cancelled attempts and of requests whose entry was released, perhaps before they
-- arrived. An attempt or request that arrives after its tombstone is rejected.
local function has_tombstone(id)
  local tombstones = field('a')
  local until_ms = tombstones and string.match(tombstones, '%f[%w]' .. id .. '|(%d+)')
  return until_ms and tonumber(until_ms) > now
end

local function add_tombstone(id)
  local kept = {}
  for known_id, until_ms in string.gmatch(field('a') or '', '(%w+)|(%d+)') do
    if known_id ~= id and tonumber(until_ms) > now then kept[#kept + 1] = known_id .. '|' .. until_ms end
  end
  kept[#kept + 1] = id .. '|' .. now + TOMBSTONE_MS
  changed.a = table.concat(kept, ',', math.max(#kept - TOMBSTONES_MAX + 1, 1))
end

-- Entries of a holder: one for each time that its lease has entered the lock. The entry with the
-- greatest weight is in the holder's own fields and determines the holder's weight. The others are
-- in `entries`, oldest first.
local ENTRY = '(%w+):(%w+):(%d+):([^;]*);'

local function entry_text(e)
  return table.concat({ e.request, e.arguments, e.weight, e.attempts }, ':') .. ';'
end

-- Returns the entry of a request, or nil. The entry with the greatest weight is the holder itself.
local function entry_of(h, request)
  if h.request == request then return h end
  local first, last, arguments, weight, attempts =
    string.find(h.entries, request .. ':(%w+):(%d+):([^;]*);')
  return first and { request = request, arguments = arguments, weight = weight, attempts = attempts,
    before = string.sub(h.entries, 1, first - 1), after = string.sub(h.entries, last + 1) }
end

local function set_attempts(h, e, attempts)
  e.attempts = attempts
  if e ~= h then h.entries = e.before .. entry_text(e) .. e.after end
end

-- Removes one of several entries. Without its heaviest entry the holder weighs less from then on,
-- unless `keeps_weight`.
local function remove_entry(h, e, keeps_weight)
  changed['r:' .. e.request] = false
  if e == h then
    local strongest, most = nil, -1
    for request, _, weight in string.gmatch(h.entries, ENTRY) do
      if tonumber(weight) > most then strongest, most = request, tonumber(weight) end
    end
    e = entry_of(h, strongest)
    if keeps_weight then e.weight = h.weight end
    holders.used = holders.used - h.weight + e.weight
    h.request, h.arguments, h.weight, h.attempts = e.request, e.arguments, e.weight, e.attempts
    if h.slot == 1 then changed['r:' .. h.request] = false end
  end
  h.entries = e.before .. e.after
  write_holder(h)
end
