-- Take the exclusive key of a task that is about to start, or park its message; then acknowledge
-- messages, as complete.lua does.
--
-- KEYS: unacked index, unacked, leases, claims, last token
-- ARGV: tag, and tags to acknowledge
-- Returns a text: 'held' (it may start; the beginning is noted as by begin.lua), 'lost' (its lease is
-- over; nothing changed), 'parked' (the claim is over, too), 'dropped' or 'replaced' (it stays
-- claimed until its end is stored); for each tag to acknowledge 1 (gone for good) or 0 (lost; nothing
-- changed); and the id of the task that is why. There is a space between two of them.
--
-- Holders whose lease has expired are ousted first.
local WAITS = '"waits": true, '

-- Returns the verdict, and the id of the task that is why; or an error.
local function take(tag)
  local record, expiry = redis.call('HGET', KEYS[4], tag), redis.call('ZSCORE', KEYS[1], tag)
  local key, limit = needs(record)
  if not key or not expiry or tonumber(expiry) <= now then
    return 'lost', ''
  end
  if is_free(key, limit, true) then
    if redis.call('ZADD', named('holders', key), 'NX', now, tag) == 1 then
      local first, last = string.find(record, WAITS, 1, true)
      if first then
        record = string.sub(record, 1, first - 1) .. string.sub(record, last + 1)
      end
      redis.call('HSET', KEYS[4], tag, '{"holds": true, ' .. string.sub(record, 2))
    end
    return 'held', ''
  elseif redis.call('ZSCORE', named('holders', key), tag) then
    return 'held', ''
  end
  local value = redis.call('HGET', KEYS[2], tag)
  if not value then
    return 'lost', ''
  end
  local verdict, by = turn_away(tag, value, record, keyed(record))
  if verdict == 'parked' then
    settle(tag)
  end
  return verdict, by
end

local verdict, by = take(ARGV[1])
if not verdict then
  return by
end
local gone = {}
for i = 2, #ARGV do
  gone[i - 1] = complete(ARGV[i])
end
return verdict .. ' ' .. table.concat(gone) .. ' ' .. by
