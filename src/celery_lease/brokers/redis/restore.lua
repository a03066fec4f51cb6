-- Shared by hand_back.lua, reap.lua and unclaim.lua: put a claimed message back where it came from.
--
-- Stored text: `[<payload>, "<exchange>", "<routing key>"]`, kombu's own form, so that a plain
-- kombu sweep can restore it too. The payload starts with `{"lease": "DDDDDD:LLLLLL", `: deliveries,
-- and the losses that are true if this delivery ends without a word. It is never decoded here.
-- An orderly return writes the losses back to what they were before this delivery; a loss leaves
-- an entry in the message's history, which exists from its first loss on.
-- What only arrived, and was never claimed, goes back as it came.
-- Atomic: the message is in its queue, or claimed, never both and never neither.
local LOSSES_AT, LOSSES_END = 19, 24
local HISTORY_LENGTH, HISTORY_KEPT = 20, 7 * 86400  -- losses, seconds
local NONCE_LENGTH = 13  -- of what a claim's tag has behind the publisher's
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1000000

local function forget(tag)
  redis.call('ZREM', KEYS[3], tag)
  redis.call('HDEL', KEYS[4], tag)
end

local function settle(tag)
  redis.call('ZREM', KEYS[1], tag)
  redis.call('HDEL', KEYS[2], tag)
  forget(tag)
end

-- Returns the stored text and the claim's record of a message that is still held under a tag.
local function held(tag)
  local value = redis.call('HGET', KEYS[2], tag)
  local record = redis.call('HGET', KEYS[4], tag)
  if not redis.call('ZSCORE', KEYS[1], tag) or not value then
    forget(tag)
    return nil
  end
  if not record then
    redis.call('ZREM', KEYS[3], tag)  -- our records were deleted: left to the plain sweep
    return nil
  end
  return value, record
end

local function history(tag)
  return KEYS[2] .. '.history.' .. string.sub(tag, 1, -1 - NONCE_LENGTH)
end

local function remember(tag, record, reason)
  local key = history(tag)
  redis.call('RPUSH', key, string.format('{"ended": %.3f, "reason": "%s", ', now, reason)
    .. string.sub(record, 2))
  redis.call('LTRIM', key, -HISTORY_LENGTH, -1)
  redis.call('EXPIRE', key, HISTORY_KEPT)
end

-- Returns the claim's record as a table, or false. `loss` is false for an orderly return.
local function restore(tag, loss, push)
  local value, record = held(tag)
  if not value then
    return false
  end
  local claim = cjson.decode(record)
  local payload = string.sub(value, 2, -(claim.cut + 1))
  if not loss and not claim.arriving then
    local losses = tonumber(string.sub(payload, LOSSES_AT, LOSSES_END)) - 1
    payload = string.sub(payload, 1, LOSSES_AT - 1) .. string.format('%06d', losses)
      .. string.sub(payload, LOSSES_END + 1)
  end
  local pushed = redis.pcall(push, claim.key, payload)
  if type(pushed) == 'table' and pushed.err then
    -- The queue's key is no list, or not ours to write. It must not hold up the other queues.
    redis.call('ZADD', KEYS[3], 'XX', now + 60, tag)
    redis.call('ZADD', KEYS[1], 'XX', now + 60, tag)
    return false, pushed.err, record
  end
  if loss and not claim.resting and not claim.arriving then
    remember(tag, record, loss)
  end
  settle(tag)
  return claim, nil, record
end

