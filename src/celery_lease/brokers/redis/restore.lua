-- Shared by requeue.lua, reap.lua and unclaim.lua: put a claimed message back where it came from.
--
-- Stored text: `[<payload>, "<exchange>", "<routing key>"]`, kombu's own form, so that a plain
-- kombu sweep can restore it too. The payload starts with `{"lease": "DDDDDD:LLLLLL", `: deliveries,
-- and the losses that are true if this delivery ends without a word. It is never decoded here.
-- An orderly return writes the losses back to what they were before this delivery; a loss leaves
-- an entry in the message's history, which exists from its first loss on.
-- What only arrived, and was never claimed, goes back as it came. What was claimed as it arrived has
-- its text without a redelivery's flags, and its publisher's tag in the record.
-- A delivery that expired before its task began is no loss: its record says that it waits.
-- Atomic: the message is in its queue, or claimed, never both and never neither.
local LOSSES_AT, LOSSES_END = 19, 24
local HISTORY_LENGTH, HISTORY_KEPT = 20, 7 * 86400  -- losses, seconds
local NONCE_LENGTH = 13  -- of what a claim's tag has behind the publisher's
local MOST_BYTES = 256 * 1024  -- moved by one call, that no other client waits for long
local UNREADABLE = 'its record cannot be read'
local moved = 0

local function is_raw(record)
  return string.find(record, '"raw": true, ', 1, true)
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
    redis.pcall('ZREM', KEYS[3], tag)  -- our records were deleted: left to the plain sweep
    return nil
  end
  moved = moved + (is_raw(record) and 4 or 1) * #value
  return value, record
end

-- Returns the payload of a stored text as it goes back.
local function payload_of(value, record, claim)
  local payload = string.sub(value, 2, -(claim.cut + 1))
  return is_raw(record) and flagged(payload) or payload
end

local function history(tag, record)
  tag = string.gsub(tag, '~$', '')
  return KEYS[2] .. '.history.' .. (is_raw(record) and string.match(record, '"name": "([^"]+)"')
    or string.sub(tag, 1, -1 - NONCE_LENGTH))
end

local why = ''  -- what else is known of a loss: members of a JSON object
local causes = {}  -- why a worker did not extend its leases

-- Returns what is known of a loss.
local function known(record, reason)
  local cause = reason == 'expired' and causes[(read(record) or {}).worker or '']
  return cause and '"cause": ' .. cjson.encode(cause) .. ', ' or why
end

local function remember(tag, record, reason)
  local key = history(tag, record)
  redis.pcall('RPUSH', key, string.format('{"ended": %.3f, "reason": "%s", ', now, reason)
    .. known(record, reason) .. string.sub(record, 2))
  redis.pcall('LTRIM', key, -HISTORY_LENGTH, -1)
  redis.pcall('EXPIRE', key, HISTORY_KEPT)
end

-- What cannot go back must not hold up the other queues.
local function postpone(tag)
  redis.pcall('ZADD', KEYS[3], 'XX', now + 60, tag)
  redis.pcall('ZADD', KEYS[1], 'XX', now + 60, tag)
  return true
end

-- Returns a payload with one loss less, as it was before this delivery.
local function without_loss(payload)
  local losses = tonumber(string.sub(payload, LOSSES_AT, LOSSES_END))
  return losses and string.sub(payload, 1, LOSSES_AT - 1) .. string.format('%06d', losses - 1)
    .. string.sub(payload, LOSSES_END + 1) or payload
end

-- Returns the claim's record as a table, or false. `loss` is false for an orderly return.
local function restore(tag, loss, push)
  local value, record = held(tag)
  if not value then
    return false
  end
  local claim = read(record)
  if not claim then
    return not postpone(tag), UNREADABLE, record
  end
  if loss == 'expired' and claim.waits and not claim.resting then
    loss = false
  end
  local payload = payload_of(value, record, claim)
  if not loss and not claim.arriving then
    payload = without_loss(payload)
  end
  local pushed = redis.pcall(push, claim.key, payload)
  if type(pushed) == 'table' and pushed.err then
    -- The queue's key is no list, or not ours to write.
    return not postpone(tag), pushed.err, record
  end
  settle(tag)
  if loss and not claim.resting and not claim.arriving then
    remember(tag, record, loss)
  end
  return claim, nil, record
end

