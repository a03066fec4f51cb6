-- Take the exclusive key of a task that is about to start, or park its message; then acknowledge
-- messages, as complete.lua does.
--
-- KEYS: unacked index, unacked, leases, claims, last token
-- ARGV: tag, and tags to acknowledge
-- Returns: 'held' (it may start; the beginning is noted as by begin.lua), 'lost' (its lease is
-- over; nothing changed), 'parked' (the claim is over, too), 'dropped' or 'replaced' (it stays
-- claimed until its end is stored); the id of the task that is why; and for each tag to acknowledge
-- 1 (gone for good) or 0 (lost; nothing changed).
--
-- Holders whose lease has expired are ousted first.
local WAITS = '"waits": true, '

-- Returns the verdict, and the id of the task that is why; or an error.
local function take(tag)
  local kept, record = redis.call('HEXISTS', KEYS[2], tag) == 1, redis.call('HGET', KEYS[4], tag)
  local expiry, claim = redis.call('ZSCORE', KEYS[1], tag), keyed(record)
  if not kept or not claim or not expiry or tonumber(expiry) <= now then
    return {'lost', ''}
  end
  local facts = claim.exclusive
  if redis.call('ZSCORE', named('holders', facts.key), tag) then
    return {'held', ''}
  end
  if is_free(facts.key, facts.limit, true) then
    local first, last = string.find(record, WAITS, 1, true)
    if first then
      record = string.sub(record, 1, first - 1) .. string.sub(record, last + 1)
    end
    redis.call('ZADD', named('holders', facts.key), now, tag)
    redis.call('HSET', KEYS[4], tag, '{"holds": true, ' .. string.sub(record, 2))
    return {'held', ''}
  end
  local verdict, by = turn_away(tag, redis.call('HGET', KEYS[2], tag), record, claim)
  if not verdict then
    return by
  end
  if verdict == 'parked' then
    settle(tag)
  end
  return {verdict, by}
end

local answers = take(ARGV[1])
for i = 2, answers.err and 1 or #ARGV do
  answers[i + 1] = complete(ARGV[i])
end
return answers
