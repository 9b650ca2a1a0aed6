#!lua flags=allow-oom
-- Marks the era of a slot that is moving to another server. Locks of which this server has no
-- record may already exist there. They are not granted here until the era of the slot has been
-- agreed again.
--
-- KEYS era
local era = redis.call('GET', KEYS[1])
if era and not string.find(era, '|moving', 1, true) then redis.call('SET', KEYS[1], era .. '|moving') end
return 1
