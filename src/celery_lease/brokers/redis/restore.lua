-- Shared by hand_back.lua and reap.lua: put a claimed message back where it came from.
--
-- Stored text: `[<payload>, "<exchange>", "<routing key>"]`, kombu's own form, so that a plain
-- kombu sweep can restore it too. The payload starts with `{"lease": "DDDDDD:LLLLLL", `: deliveries,
-- and the losses that are true if this delivery ends without a word. It is never decoded here.
-- An orderly return writes the losses back to what they were before this delivery.
-- Atomic: the message is in its queue, or claimed, never both and never neither.
local LOSSES_AT, LOSSES_END = 19, 24

local function forget(tag)
  redis.call('ZREM', KEYS[3], tag)
  redis.call('HDEL', KEYS[4], tag)
end

local function restore(tag, orderly, push)
  local value = redis.call('HGET', KEYS[2], tag)
  local record = redis.call('HGET', KEYS[4], tag)
  if not redis.call('ZSCORE', KEYS[1], tag) or not value then
    forget(tag)
    return false
  end
  if not record then
    redis.call('ZREM', KEYS[3], tag)  -- our records were deleted: left to kombu's own sweep
    return false
  end
  local claim = cjson.decode(record)
  local payload = string.sub(value, 2, -(claim.cut + 1))
  if orderly then
    local losses = tonumber(string.sub(payload, LOSSES_AT, LOSSES_END)) - 1
    payload = string.sub(payload, 1, LOSSES_AT - 1) .. string.format('%06d', losses)
      .. string.sub(payload, LOSSES_END + 1)
  end
  redis.call(push, claim.key, payload)
  redis.call('ZREM', KEYS[1], tag)
  redis.call('HDEL', KEYS[2], tag)
  forget(tag)
  return claim
end

