#!lua flags=allow-oom
-- Writes the era if the store still contains the era that the broker read, and if it is not too
-- late. Of several brokers that verify the same store one writes, and the others adopt its era.
--
-- KEYS era, deployment key
-- ARGV 1 the era that was read, '' for none; 2 era id; 3 the fields after no_grants_before;
--      4 quarantine in ms, '-1' for none; 5 no_grants_before if there is no quarantine;
--      6 the deployment key to store, '' to leave it unchanged;
--      7 run id of the master that the server has replaced, '' for none;
--      8 time in ms for which that master may still accept writes;
--      9 time in ms until which the previous era's former master may accept writes, '0' for none;
--      10 run id of that master, '' for none; 11 cause of the quarantine;
--      12 longest span in ms that may be in force, '' if the store has no limit of spans;
--      13 longest span in ms that is granted from now on; 14 time in ms that a change of the limit
--      takes at least; 15 time in ms for which a grant of a former master may be in force;
--      16 time in ms after which nothing is written, '' for none;
--      17 token that each grant of the era must exceed, '' for none
-- Reply: 1 if written, the era now in force, the time in ms
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local era = redis.call('GET', KEYS[1]) or ''
if era ~= ARGV[1] or ARGV[16] ~= '' and now > tonumber(ARGV[16]) then
  return {0, era, now}
end
local former, until_ms = ARGV[7], now + tonumber(ARGV[8])
local former_before, until_before = ARGV[10], tonumber(ARGV[9])
if until_before > now then
  if former == '' then
    former, until_ms = former_before, until_before
  else
    former, until_ms = '*', math.max(until_ms, until_before)
  end
end
local no_grants_before, quarantine, covered = tonumber(ARGV[5]), tonumber(ARGV[4]), tonumber(ARGV[12])
if quarantine >= 0 then
  -- that of the previous era may be far in the future, if the clock was set back since
  no_grants_before = now + quarantine
  -- a former master grants until it stops
  if covered and former ~= '' then no_grants_before = math.max(no_grants_before, until_ms + ARGV[15]) end
end
era = ARGV[2] .. '|' .. string.format('%.0f', no_grants_before) .. '|' .. ARGV[3]
if quarantine >= 0 then
  era = era .. '|cause:' .. ARGV[11] .. '|since:' .. string.format('%.0f', now)
  if covered then
    local at = math.max(no_grants_before, now + ARGV[14])
    era = era .. string.format('|span:%.0f:%s:%.0f', covered, ARGV[13], at)
  end
end
-- tokens are at least the time, so a floor below that of the first grant has no effect
local floor = tonumber(ARGV[17])
if floor and floor >= no_grants_before * 1000 then era = era .. '|token:' .. ARGV[17] end
if former ~= '' then era = era .. '|former:' .. string.format('%.0f', until_ms) .. ':' .. former end
redis.call('SET', KEYS[1], era)
if ARGV[6] ~= '' then
  redis.call('SET', KEYS[2], ARGV[6])
end
return {1, era, now}
