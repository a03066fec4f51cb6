-- Return messages to their queues, each only if its claim is still the asker's.
--
-- KEYS: unacked index, unacked, leases, claims
-- ARGV: '1' if orderly (not counted as a loss), RPUSH (front of the line) or LPUSH (back), tags
-- Returns: for each tag 1 (back in its queue, or at rest) or 0 (lost; nothing changed).
--
-- A message whose holders die of it at once would go round as fast as workers can be started. So
-- from its second loss on it rests, twice as long each time: held under a tag that nobody knows,
-- until a reaper returns it. An expiry needs no rest, it has taken a whole lease.
local RESTS_FROM, LONGEST_REST = 2, 60  -- losses, seconds
local orderly, push = ARGV[1] == '1', ARGV[2]

local function rest(tag, losses)
  local value, record = held(tag)
  if not value then
    return false
  end
  local resting, ends = tag .. '~', now + math.min(LONGEST_REST, 2 ^ (losses - 1))
  remember(tag, record, 'given up')
  settle(tag)
  redis.call('ZADD', KEYS[1], ends, resting)
  redis.call('HSET', KEYS[2], resting, value)
  redis.call('ZADD', KEYS[3], ends, resting)
  redis.call('HSET', KEYS[4], resting, '{"resting": true, ' .. string.sub(record, 2))
  return true
end

local function losses(tag)
  local record = redis.call('HGET', KEYS[4], tag)
  return record and cjson.decode(record).losses + 1 or 0
end

local answers = {}
for i = 3, #ARGV do
  local tag = ARGV[i]
  local count = orderly and 0 or losses(tag)
  if count >= RESTS_FROM then
    answers[i - 2] = rest(tag, count) and 1 or 0
  else
    answers[i - 2] = restore(tag, not orderly and 'given up', push) and 1 or 0
  end
end
return answers
