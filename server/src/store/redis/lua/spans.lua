#!lua flags=allow-oom
-- Adapts the limit of spans in the era to the spans in use, and stamps the store. A limit is raised
-- when a larger span is requested. It is lowered when no larger span was in use for a window of 2 Q.
--
-- Each change takes at least `change` ms: until then scripts use the smaller limit, and a recovery
-- counts the larger one (rejections.lua, span_limit.rs). A lowered limit counts only after the
-- larger spans have passed. A raise during a lowering keeps the larger limit.
--
-- KEYS era, spans: 'stamp|begin of the window|largest span in it|largest span in the window before';
--      the last one is empty while it is unknown, which counts as the limit
-- ARGV 1 era id; 2 largest span that the broker has seen since its last run, in ms; 3 least limit,
--      in ms; 4 least time of a change, in ms; 5 Q without the limit, in ms;
--      6 step of limits, in ms
-- Reply: the era, the time in ms; '' if the era is another one
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local era = redis.call('GET', KEYS[1]) or ''
local before, after, at = string.match(era, '|span:(%d+):(%d+):(%d+)')
if string.match(era, '^[^|]*') ~= ARGV[1] or not at then return { '', now } end
before, after, at = tonumber(before), tonumber(after), tonumber(at)
local seen, least, change, step = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[6])
local is_pending = now < at
local usable = is_pending and math.min(before, after) or after
local larger = is_pending and math.max(before, after) or after

local _, began, used, used_before = string.match(redis.call('GET', KEYS[2]) or '', '^(%d+)|(%d+)|(%d+)|(%d*)$')
began, used, used_before = tonumber(began) or now, tonumber(used) or 0, tonumber(used_before)
local window = 2 * (larger + ARGV[5])
if now - began >= window or began > now then began, used, used_before = now, 0, used end
used = math.max(used, seen)
local text = string.format('%.0f|%.0f|%.0f|', now, began, used)
if used_before then text = text .. string.format('%.0f', used_before) end
redis.call('SET', KEYS[2], text, 'PX', 3600000)

local needed = math.max(used, used_before or after, least)
local wanted = least + math.ceil((needed - least) / step) * step
local is_raising = is_pending and after > before
if needed > after and not is_raising then
  before, after, at = usable, math.max(wanted, larger), now + change
elseif wanted < after and not is_pending then
  before, after, at = after, wanted, now + math.max(after, change)
else
  return { era, now }
end
era = string.gsub(era, '|span:%d+:%d+:%d+', string.format('|span:%.0f:%.0f:%.0f', before, after, at))
redis.call('SET', KEYS[1], era)
return { era, now }
