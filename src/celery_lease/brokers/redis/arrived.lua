-- Shared by adopt.lua, claim.lua and unclaim.lua: end an arrival, the record that arrive.lua makes.
--
-- Returns whether it was still there: else a reaper or a plain kombu sweep returned the message.
local function arrived(tag)
  redis.call('HDEL', KEYS[2], tag)
  redis.call('ZREM', KEYS[3], tag)
  redis.call('HDEL', KEYS[4], tag)
  return redis.call('ZREM', KEYS[1], tag) == 1
end
