-- Ends of leases: the expiry of holders, hand-offs that lapse because they were not claimed, and
-- the records of ended leases, kept for a while so that repeated requests get a correct reply.

-- Returns true if the stamp of an ended lease still counts.
local function still_counts(kind, stamp, counters)
  local seq, at = string.match(stamp or '', '^(%d+)|(%d+)')
  return seq and record_counts(kind, tonumber(seq), tonumber(at), tonumber(string.match(counters, '^%d+|(%d+)')))
end

local function was_expired(lease) return still_counts('e', field('e:' .. lease), expired) end

local function is_newly_released(lease) return still_counts('z', field('z:' .. lease), released) end

-- Returns true if the lock was released from the lease. The lease may have other locks.
local function was_released(lease)
  return is_newly_released(lease) or still_counts('p', field('p:' .. lease), '0|0')
end

-- Returns how a lease that does not hold the lock has ended, and the reason if it was revoked.
local function ended_lease_tag(lease)
  -- expiry takes precedence: a lock can be added again after a release, but not after an expiry
  if was_expired(lease) then
    local reason = string.match(field('e:' .. lease), '^%d+|%d+|(.*)$')
    return reason and 'REVOKED' or 'EXPIRED', reason
  end
  return was_released(lease) and 'RELEASED' or 'NOTFOUND'
end

-- Returns how the hold with this token has ended, and the reason if it was revoked. h: the holder
-- of the lease, with another token.
local function ended_tag(h, lease, token)
  if not h then return ended_lease_tag(lease) end
  -- a lock is added to its lease again only after a release
  local is_older = tonumber(token) < tonumber(h.token)
  return is_older and was_released(lease) and 'RELEASED' or 'NOTFOUND'
end

-- Reports the end of a lease to the broker that runs the command, and to no other. The report is an
-- element of the hand-offs in the reply: '!', 'kind|lease|token|held_ms|reason', owner.
local function report_end(h, reason)
  local max_hold = max_hold_of(h)
  local is_cut = max_hold > 0 and h.since + max_hold <= h.expires
  local kind = has_flag(h, REVOKED) and 'REVOKED' or is_cut and 'MAXHOLD' or 'EXPIRED'
  local text = table.concat({ kind, h.lease, h.token, math.max(h.expires - h.since, 0), reason or '' }, '|')
  local at = #hand_offs
  hand_offs[at + 1], hand_offs[at + 2], hand_offs[at + 3] = '!', text, h.owner
end

-- Ends a lease: reports and records its end, closes the lock after it, and frees its slot.
local function end_lease(h)
  local reason = has_flag(h, REVOKED) and field('k:' .. h.lease) or nil
  report_end(h, reason)
  record_change(has_flag(h, REVOKED) and 'REVOKED' or 'EXPIRED', h)
  close_after(h, h.expires)
  free_holder(h)
  expired = record_end('e', expired, h.lease, h.expires, reason)
end

-- Returns why a holder cannot be renewed, and the reason if it was revoked.
local function end_reason(h)
  if has_flag(h, REVOKED) then return 'REVOKED', field('k:' .. h.lease) end
  return 'MAXHOLD'
end

-- Returns an unclaimed hand-off to its queue position. Nothing of the hand-off is recorded.
local function lapse(h)
  local w = read_waiter(h.position)
  w.attempts, w.passed, w.slot = h.attempts, h.expires, nil
  write_waiter(h.position, w)
  remove(h)
end

-- Ends expired holders, at most EXPIRATIONS_MAX per command to bound the run time of the script.
-- The next command continues.
local function end_expired()
  read_holders(1, holders.top)
  local earliest, ended = 0, 0
  for slot = 1, holders.top do
    local text = field('h:' .. slot)
    local expires = text and tonumber(string.match(text, '^%w+|%w+|%w+|%d+|%d+|%d+|(%d+)'))
    if expires and expires > now then
      earliest = earliest == 0 and expires or math.min(earliest, expires)
    elseif expires and ended == EXPIRATIONS_MAX then
      earliest, more = earliest == 0 and expires or math.min(earliest, expires), 1
    elseif expires then
      unexpired(holder_at(slot))
      ended = ended + 1
    end
  end
  holders.earliest, changed.v = earliest, SCHEMA
end

-- Records that a lock, or one of its entries, was released from a lease that may have other locks.
-- The last record of a lease replaces the one before.
local function record_partial_release(h)
  local previous = string.match(field('p:' .. h.lease) or '', '^%d+')
  if previous then changed['pq:' .. previous] = false end
  local counters, parts = string.match(released, '^(%d+|%d+)|?(.*)$')
  parts = record_end('p', parts ~= '' and parts or '1|0', h.lease, now + expiry(h.ttl))
  changed.p, changed.z = nil, counters .. '|' .. parts
end

exports.was_expired, exports.is_newly_released, exports.was_released = was_expired, is_newly_released, was_released
exports.ended_tag, exports.end_reason = ended_tag, end_reason
exports.lapse, exports.end_lease, exports.end_expired = lapse, end_lease, end_expired
exports.record_partial_release = record_partial_release
