-- Return expired leases to the front of their queues; the last of the tags is delivered first. Look
-- after parked messages, which are due now and then.
--
-- KEYS: unacked index, unacked, leases, claims, refusals
-- ARGV: why workers did not extend their leases, a JSON object by worker; tags
-- Returns: how many of the tags were dealt with, fewer than all where messages are long or keys
--   have many holders; and for
-- each message that was due its tag, the seconds since its expiry, its claim record, and why it
-- could not be returned, or nothing.
--
-- A lease that is extended in the same instant is either extended before this runs, and stays, or
-- after, and is lost. What cannot be returned is out of the way for a minute.
-- Records without a message, as a plain kombu sweep leaves them, are cleared on the way. A refusal
-- shows a worker that got no answer to its claim that the claim is over.
redis.call('ZADD', KEYS[5], 'XX', now, '')  -- changes nothing; fails here, if at all
local reaped, seen = {}, 0
local MOST_LOOKED = 2000  -- holders of keys, of which one key has 1,000 at most

-- Look after a parked message; returns whether it is one. It is woken if its key is free, which is
-- a repair, or if its time is over; else it stays.
local woken, busy = {}, {}  -- keys; keys that are not free, until something is returned

local function tend(tag)
  local claim = keyed(redis.call('HGET', KEYS[4], tag))
  if not claim or not claim.parked then
    return false
  end
  if not held(tag) then
    return true
  end
  local facts = claim.exclusive
  local over = type(facts.expires) == 'number' and facts.expires <= now
  local free = not woken[facts.key] and not busy[facts.key] and is_free(facts.key, facts.limit)
  if (over or free) and unpark(tag) then
    woken[facts.key] = true
    return true
  end
  busy[facts.key] = not free or nil
  line_up(tag, claim)
  redis.pcall('ZADD', KEYS[3], 'XX', now + PARKED_FOR, tag)
  redis.pcall('ZADD', KEYS[1], 'XX', now + PARKED_FOR, tag)
  return true
end

local function reap(tag, late)
  local claim, err, record = restore(tag, 'expired', 'RPUSH')
  busy = {}
  if record then
    reaped[#reaped + 1] = {tag, string.format('%.3f', late), record, err or ''}
  end
  if claim or not record then  -- returned here, or by a plain kombu sweep before
    redis.pcall('ZADD', KEYS[5], now, tag)
  end
end

causes = cjson.decode(ARGV[1])
for i = 2, #ARGV do
  local expiry = redis.call('ZSCORE', KEYS[3], ARGV[i])
  if expiry and tonumber(expiry) <= now and not tend(ARGV[i]) then
    reap(ARGV[i], now - tonumber(expiry))
  end
  seen = i - 1
  if moved >= MOST_BYTES or looked >= MOST_LOOKED then
    break
  end
end
return {seen, reaped}
