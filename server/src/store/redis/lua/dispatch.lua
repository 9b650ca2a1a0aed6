-- Runs the verb, for one lock or for several locks in turn, with one reading of the clock. A
-- failure for one of several locks has written nothing to its record, and does not stop the others.
local count = math.max(#KEYS - 1, 1)
if count == 1 then
  reset(lock)
  return verb(unpack(ARGV, 4))
end
local replies, each = {}, (#ARGV - 3) / count
for i = 1, count do
  reset(KEYS[i == 1 and 1 or i + 1])
  local done, reply = pcall(verb, unpack(ARGV, 4 + (i - 1) * each, 3 + i * each))
  if not done then
    -- same text as without pcall, for which some servers return a table and others the text
    local text = type(reply) == 'table' and reply.err or reply
    reply = { 'ERROR', string.find(text, '^user_script') and 'ERR ' .. text or text }
  end
  replies[i] = reply
end
return replies
