-- Runs the verb: for one lock, or for several one after the other, with one reading of the clock. What
-- fails for one of several has written nothing there, and stops none of the others.
local count = math.max(#KEYS - 1, 1)
if count == 1 then
  begin(lock)
  return verb(unpack(ARGV, 4))
end
local replies, each = {}, (#ARGV - 3) / count
for i = 1, count do
  begin(KEYS[i == 1 and 1 or i + 1])
  local done, reply = pcall(verb, unpack(ARGV, 4 + (i - 1) * each, 3 + i * each))
  if not done then
    -- as it would be without pcall, which some servers let give a table, and others its text
    local text = type(reply) == 'table' and reply.err or reply
    reply = { 'ERROR', string.find(text, '^user_script') and 'ERR ' .. text or text }
  end
  replies[i] = reply
end
return replies
