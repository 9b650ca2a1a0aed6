-- Runs the verb for each lock, with one reading of the clock.

local verb, reset
local function run(lock, ...)
  local reply = plain and plain(lock, ...)
  if reply then return reply end
  if not verb then verb, reset = create_verb() end
  reset(lock)
  return verb(...)
end

local count = math.max(#KEYS - 1, 1)
if count == 1 then return run(KEYS[1], unpack(ARGV, 4)) end

-- A failure for one of several locks has written nothing to its record, and does not stop the others.
local replies, each = {}, (#ARGV - 3) / count
for i = 1, count do
  local done, reply = pcall(run, KEYS[i == 1 and 1 or i + 1], unpack(ARGV, 4 + (i - 1) * each, 3 + i * each))
  if not done then
    -- same text as without pcall, for which some servers return a table and others the text
    local text = type(reply) == 'table' and reply.err or reply
    reply = { 'ERROR', string.find(text, '^user_script') and 'ERR ' .. text or text }
  end
  replies[i] = reply
end
return replies
