-- Tombstones of requests and attempts, and the entries of a holder.

-- Tombstones of cancelled attempts and of requests whose entry was released, perhaps before they
-- arrived. An attempt or request that arrives after its tombstone is rejected.
local function add_tombstone(id)
  local kept = {}
  for known_id, until_ms in string.gmatch(field('a') or '', '(%w+)|(%d+)') do
    if known_id ~= id and tonumber(until_ms) > now then kept[#kept + 1] = known_id .. '|' .. until_ms end
  end
  kept[#kept + 1] = id .. '|' .. now + TOMBSTONE_MS
  changed.a = table.concat(kept, ',', math.max(#kept - TOMBSTONES_MAX + 1, 1))
end

-- Returns true if a request or attempt has a tombstone.
local function has_tombstone(id)
  local tombstones = field('a')
  local until_ms = tombstones and string.match(tombstones, '%f[%w]' .. id .. '|(%d+)')
  return until_ms and tonumber(until_ms) > now
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

exports.add_tombstone, exports.has_tombstone, exports.entry_of = add_tombstone, has_tombstone, entry_of
exports.set_attempts, exports.remove_entry = set_attempts, remove_entry
