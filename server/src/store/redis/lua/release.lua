-- Release, by which a caller ends its hold.

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
  if h and h.token == token and is_on_other_stream(h.stream, via) then
    tag = 'ELSEWHERE'
  elseif h and h.token == token and what == '!' then
    tag, h.expires = 'NOW', now
    rare().end_lease(h)
  elseif h and h.token == token then
    tag = 'NOW'
    local e = what ~= '' and rare().entry_of(h, what)
    if what ~= '' then rare().add_tombstone(what) end
    -- also if entries are left: the holder may not know of them, and they may be rolled back
    if is_part and (e or what == '') then rare().record_partial_release(h) end
    if what ~= '' and not e then
      tag, left = 'RELEASED', hold_count(h)
    elseif e and h.entries ~= '' then
      -- after a loss of data the holder may rely on an entry that is not recorded
      rare().remove_entry(h, e, rare().has_lost_data_since(h.since))
      left = hold_count(h)
      -- the other entries may be rolled back, which closes nothing
      rare().close_after(h, nil)
    else
      -- repeats of the call that created the lease are rejected by the records of released leases
      if h.entries ~= '' or has_flag(h, ADDED) then
        rare().add_tombstone(h.request)
        for other in string.gmatch(h.entries, '(%w+):%w+:%d+:') do rare().add_tombstone(other) end
      end
      if watched then waiting().record_change('RELEASED', h) end
      if what ~= '' and rare().has_lost_data_since(h.since) then rare().close('DELAY', h.expires, h.owner) end
      if h.terms ~= '' then rare().close_after(h, has_flag(h, DELAYS_ON_RELEASE) and now) end
      free_holder(h)
      -- a lock that was added to a lease may be added again
      if not is_part or not has_flag(h, ADDED) then
        record_end('z', changed.z or released, lease, now)
      end
    end
  else
    tag, reason = rare().ended_tag(h, lease, token)
  end
  advance()
  if notify == '1' then waiting().publish_release() end
  return reply(tag, left, reason)
end
