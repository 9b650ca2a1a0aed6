-- On which stream a lease or a waiter is: 'broker.epoch.number', or '' for none. The number is its
-- client's count of attachments. `moved`: 'lease.broker.epoch.number', where it was.

local function stream_of(attachment) return string.match(attachment, '^(.*)%.') or '' end

-- Where something is that was at `here` and is put `there`; nil if `there` is older.
local function moved_to(here, there)
  if here == '' then return there end
  if there == '' then return nil end
  local newer = tonumber(string.match(there, '%d+$')) > tonumber(string.match(here, '%d+$'))
  if stream_of(here) == stream_of(there) then return newer and there or here end
  return newer and there or nil
end

-- Puts a lease on a stream. The one that it leaves is told.
local function put_on(h, there)
  local from = h.stream
  h.stream = there
  if from == '' or stream_of(from) == stream_of(there) then return end
  moved = h.lease .. '.' .. from
  local broker = string.match(from, '^%w+')
  if broker ~= me then tell(broker, lock .. '\n' .. h.lease .. '\n' .. from) end
end

-- Whether a lease may not be changed from there: '*' is anywhere, '' is on no stream, or an epoch.
local function is_elsewhere(h, via)
  return via ~= '*' and stream_of(h.stream) ~= (via ~= '' and me .. '.' .. via or '')
end
