-- Attempts that are not listed.

-- Placeholder for attempts that are not listed, because the list of the holder was full or because
-- they have not reached this node of a RedLock store. Their replies may have been delivered. No
-- cancel can name the placeholder, so cancels can no longer free the lock.
local UNLISTED = '0000000000000'

-- Records that the client has received the lease, perhaps by an attempt that is not listed.
local function add_unlisted_attempt(h)
  if string.sub(h.attempts, 1, 13) == UNLISTED then return end
  h.attempts = UNLISTED .. '@' .. broker_id .. ',' .. h.attempts
end

exports.add_unlisted_attempt = add_unlisted_attempt
