-- Return messages to their queues, each only if its claim is still the asker's.
--
-- KEYS: unacked index, unacked, leases, claims
-- ARGV: '1' if orderly (not counted as a loss), RPUSH (front of the line) or LPUSH (back), what is
--   known of the loss as members of a JSON object or nothing, tags
-- Returns: for each tag 1 (back in its queue, or at rest) or 0 (lost; nothing changed). Of long
-- messages, for the first tags only: the others are to be asked for again.
--
-- A message whose holders die of it at once would go round as fast as workers can be started. So
-- from its second loss on it rests, twice as long each time: held under a tag that nobody knows,
-- until a reaper returns it. An expiry needs no rest, it has taken a whole lease.
local RESTS_FROM, LONGEST_REST = 2, 60  -- losses, seconds
local orderly, push = ARGV[1] == '1', ARGV[2]
why = ARGV[3]

local function rest(tag, losses)
  local value, record = held(tag)
  if not value then
    return 0
  end
  local ends = now + math.min(LONGEST_REST, 2 ^ (losses - 1))
  local err = keep(tag .. '~', ends, value, '{"resting": true, ' .. string.sub(record, 2))
  if err then
    return postpone(tag) and 0
  end
  settle(tag)
  remember(tag, record, 'given up')
  return 1
end

local function losses(tag)
  local claim = read(redis.call('HGET', KEYS[4], tag))
  return claim and claim.losses and claim.losses + 1 or 0
end

local answers = {}
for i = 4, #ARGV do
  local tag = ARGV[i]
  local count = orderly and 0 or losses(tag)
  if count >= RESTS_FROM then
    answers[i - 3] = rest(tag, count)
  else
    answers[i - 3] = restore(tag, not orderly and 'given up', push) and 1 or 0
  end
  if moved >= MOST_BYTES then
    break
  end
end
return answers
