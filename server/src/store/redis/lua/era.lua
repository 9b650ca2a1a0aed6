#!lua flags=allow-oom
-- Writes the era, if the store still holds the one that the broker read: of several brokers that
-- verify the same store one writes, the others adopt.
-- KEYS era, deployment key
-- ARGV 1 the era that was read, '' for none; 2 era id; 3 the fields after no_grants_before;
--      4 quarantine in ms, '-1' for none; 5 no_grants_before that may not be undercut;
--      6 the deployment key to store, '' to leave it alone
-- Reply: 1 if written, the era now in force, the time in ms
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local era = redis.call('GET', KEYS[1]) or ''
if era ~= ARGV[1] then
  return {0, era, now}
end
local no_grants_before = tonumber(ARGV[5])
local quarantine = tonumber(ARGV[4])
if quarantine >= 0 then
  no_grants_before = math.max(no_grants_before, now + quarantine)
end
era = ARGV[2] .. '|' .. string.format('%.0f', no_grants_before) .. '|' .. ARGV[3]
redis.call('SET', KEYS[1], era)
if ARGV[6] ~= '' then
  redis.call('SET', KEYS[2], ARGV[6])
end
return {1, era, now}
