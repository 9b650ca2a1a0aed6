-- Votes of a RedLock store: each node grants the lock with the token that is proposed to all nodes,
-- or returns the token that it would accept.
local proposed, max_clock_skew, may_raise_token

-- Sets the proposal. max_clock_skew_ms: largest allowed distance of the token from this node's clock.
-- is_raise: '1' to raise the token of a holder.
local function propose(token, max_clock_skew_ms, is_raise)
  proposed, max_clock_skew, may_raise_token = token, max_clock_skew_ms, is_raise == '1'
end

-- Returns true if the token is too old. It must be near this node's clock, because the node may
-- have lost a newer token than it has recorded.
local function is_behind() return proposed <= last_token or proposed < now_us - max_clock_skew * 1000 end

local function is_ahead() return proposed > now_us + max_clock_skew * 1000 end

-- Returns the rejection of the proposed token, or nil if it is acceptable. The suggested token
-- stays acceptable for a while. It is no farther ahead than necessary, because the clocks of other
-- nodes may be behind this one.
local function vote_objection()
  if is_behind() then return reply('BEHIND', math.max(last_token + 1, now_us - max_clock_skew * 500)) end
  if is_ahead() then return reply('AHEAD') end
end

-- Replaces the token of a holder to whose call no quorum has granted the same token. The holder
-- already has the token of a lease that was entered again, so that token stays.
local function raise_token(h, e)
  if not may_raise_token or e ~= h or h.entries ~= '' or is_behind() or is_ahead() then return end
  last_token = proposed
  changed.f = int(last_token)
  h.token = changed.f
end

-- Adds this broker to those that are notified when the lock becomes free: a node of a RedLock store
-- has no queue.
local function subscribe_release()
  local brokers = field('n') or ''
  if #brokers < RELEASE_SUBSCRIBERS_MAX * #broker_id and not string.find(brokers, broker_id, 1, true) then
    changed.n = brokers .. broker_id
  end
end

exports.propose, exports.vote_objection = propose, vote_objection
exports.raise_token, exports.subscribe_release = raise_token, subscribe_release
