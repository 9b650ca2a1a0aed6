-- Release and Cancel, by which a caller ends its hold or its wait.

-- Returns the list without the attempt, or nil if the list does not contain it.
local function remove_attempt(attempts, attempt)
  local at = string.find(attempts, attempt, 1, true)
  if not at then return nil end
  local left = string.sub(attempts, 1, at - 1) .. string.sub(attempts, at + ATTEMPT_LEN)
  return string.sub(left, -1) == ',' and string.sub(left, 1, -2) or left
end

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
local function release(lease, token, what, via, notify)
  local tag, reason
  local left = 0
  local is_part = what ~= ''
  if what == '+' then what = '' end
  local h = load_lease(lease)
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
      -- the other entries may be rolled back, which closes nothing
      close_after(h, nil, close)
    else
      -- repeats of the call that created the lease are rejected by the records of released leases
      if h.entries ~= '' or has_flag(h, ADDED) then
        add_tombstone(h.request)
        for other in string.gmatch(h.entries, ENTRY) do add_tombstone(other) end
      end
      record_change('RELEASED', h)
      if what ~= '' and has_lost_data_since(h.since) then close('DELAY', h.expires, h.owner) end
      close_after(h, has_flag(h, DELAYS_ON_RELEASE) and now, close)
      free_holder(h)
      -- a lock that was added to a lease may be added again
      if not is_part or not has_flag(h, ADDED) then
        record_end('z', changed.z or released, lease, now, release_counts)
      end
    end
  else
    tag, reason = ended_tag(h, lease, token)
  end
  advance()
  if notify == '1' then publish_release() end
  return reply(tag, left, reason)
end

-- Cancel: cancels one attempt of a request. With its last attempt the request leaves the queue or
-- releases the lock. An attempt that has not arrived yet leaves a tombstone. notify: as for Release
local function cancel(request, attempt, notify)
  load('r:' .. request)
  local position = tonumber(field('r:' .. request))
  expire()
  local h = unexpired(holder_by(request))
  local e = h and entry_of(h, request)
  local w = not h and position and read_waiter(position)
  local left = e and remove_attempt(e.attempts, attempt) or w and remove_attempt(w.attempts, attempt)
  if not left then
    add_tombstone(attempt)
    return reply((e or w) and 'KEPT' or 'UNKNOWN')
  end
  if left ~= '' then
    if h then
      set_attempts(h, e, left)
      write_holder(h)
    else
      w.attempts = left
      write_waiter(position, w)
    end
    return reply('KEPT')
  end
  if h and h.entries ~= '' then
    remove_entry(h, e)
  else
    record_change(h and not h.position and 'RELEASED' or 'ABANDONED', h or w)
    if h then free_holder(h) else dequeue(position, request) end
  end
  advance()
  if notify == '1' then publish_release() end
  return reply(h and 'FREED' or 'DEQUEUED')
end
