-- One vote of several: where several nodes keep a lock, each grants it with the token that is proposed
-- to all of them, or says which one it would take.
local proposed, apart_max, raises, tells

-- Its token (0 asks for nothing new; '': this node decides alone), how far it may be from this node's
-- clock in ms, 1 to raise the token of a holder, when to tell this broker that the lock is free (0:
-- never, 1: if it is not granted now, 2: in any case).
local function propose(token, apart_max_ms, is_raise, when)
  proposed, apart_max, raises, tells = tonumber(token), apart_max_ms, is_raise == '1', when
end

-- A token must be near this node's clock: the node may have forgotten a newer one than it knows.
local function is_behind() return proposed <= fence or proposed < now_us - apart_max * 1000 end

local function is_ahead() return proposed > now_us + apart_max * 1000 end

-- The answer to a proposal that is not taken; nil to one that is. What is said to do will still do a
-- while later, and is no farther ahead than it must be: other clocks may be behind this one.
local function against()
  if is_behind() then return reply('BEHIND', math.max(fence + 1, now_us - apart_max * 500)) end
  if is_ahead() then return reply('AHEAD') end
end

-- Another token for a call that no quorum has granted the same one. A lease that was entered again is
-- known to its holder, and keeps its token.
local function raise(h, e)
  if not raises or e ~= h or h.entries ~= '' or is_behind() or is_ahead() then return end
  fence = proposed
  changed.f = int(fence)
  h.token = changed.f
end
