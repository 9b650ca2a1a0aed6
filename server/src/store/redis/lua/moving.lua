#!lua flags=allow-oom
-- Marks the era of a slot that is on its way to another server. Locks of which this server has no record may
-- be there already: they are not granted here before the slot has been settled again.
-- KEYS era
local era = redis.call('GET', KEYS[1])
if era and not string.find(era, '|moving', 1, true) then redis.call('SET', KEYS[1], era .. '|moving') end
return 1
