-- Records that a lock, or one of its entries, was released from a lease that may have other locks.
-- The last record of a lease replaces the one before.
local function record_partial_release(lease, until_ms)
  local previous = string.match(field('p:' .. lease) or '', '^%d+')
  if previous then changed['pq:' .. previous] = false end
  local counters, parts = string.match(released, '^(%d+|%d+)|?(.*)$')
  parts = record_end('p', parts ~= '' and parts or '1|0', lease, until_ms, partial_release_counts)
  changed.p, changed.z = nil, counters .. '|' .. parts
end

-- Release: releases a lease or one of its entries, and hands the lock to the next waiters in the
-- same step.
--
-- what: '' for all; '+' for all of a lock whose lease may have other locks; the request of an entry
-- of a lock like that; or '!' to end the lease as expired. notify: 1 to notify the brokers that
-- subscribed to the release of the lock, '' not to notify them.
local function verb(lease, token, what, via, notify)
  local l, was_released, was_expired = load('l:' .. lease, 'z:' .. lease, 'e:' .. lease)
  known['l:' .. lease] = l
  local tag, reason
  local left = 0
  local is_part = what ~= ''
  if what == '+' then what = '' end
  expire()
  local h = unexpired(holder_of(lease))
  if h and h.token == token and is_on_other_stream(h, via) then
    tag = 'ELSEWHERE'
  elseif h and h.token == token and what == '!' then
    tag, h.expires = 'NOW', now
    end_lease(h)
  elseif h and h.token == token then
    tag = 'NOW'
    local e = what ~= '' and entry_of(h, what)
    if what ~= '' then add_tombstone(what) end
    -- also if entries are left: the holder may not know of them, and they may be rolled back
    if is_part and (e or what == '') then record_partial_release(lease, now + expiry(h.ttl)) end
    if what ~= '' and not e then
      tag, left = 'RELEASED', hold_count(h)
    elseif e and h.entries ~= '' then
      -- after a loss of data the holder may rely on an entry that is not recorded
      remove_entry(h, e, has_lost_data_since(h.since))
      left = hold_count(h)
    else
      if what ~= '' and has_lost_data_since(h.since) then
        lock_delay_until = math.max(lock_delay_until, h.expires)
      end
      -- repeats of the call that created the lease are rejected by the records of released leases
      if h.entries ~= '' or has_flag(h, ADDED) then
        add_tombstone(h.request)
        for other in string.gmatch(h.entries, ENTRY) do add_tombstone(other) end
      end
      if has_flag(h, DELAYS_ON_RELEASE) then
        h.expires = now
        start_lock_delay(h)
      end
      record_change('RELEASED', h)
      free_holder(h)
      -- a lock that was added to a lease may be added again
      if not is_part or not has_flag(h, ADDED) then
        record_end('z', changed.z or released, lease, now, release_counts)
      end
    end
  else
    tag, reason = ended_tag(h, lease, token, was_released, was_expired)
  end
  advance()
  if notify == '1' then publish_release() end
  if next(changed) or is_queue_touched then save() end
  return { tag, now, more, hand_offs, left, reason }
end
