-- Return expired leases to the front of their queues, the longest expired first.
--
-- KEYS: unacked index, unacked, leases, claims, refusals
-- ARGV: the most to return
-- Returns: for each one its tag, the seconds since its expiry, its claim record, and why it could
-- not be returned, or nothing.
--
-- Cost grows with what has expired, not with what is held; a lease that is extended in the same
-- instant is either extended before this runs, and stays, or after, and is lost.
-- Records without a message, as a plain kombu sweep leaves them, are cleared on the way. A refusal
-- tells an asker who never heard of its claim that the claim is over; it is kept for an hour.
local limit = tonumber(ARGV[1])
local reaped = {}
repeat
  local due = redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', now, 'WITHSCORES',
    'LIMIT', 0, limit - #reaped)
  for i = 1, #due, 2 do
    local claim, err, record = restore(due[i], 'expired', 'RPUSH')
    if record then
      reaped[#reaped + 1] = {due[i], string.format('%.3f', now - tonumber(due[i + 1])), record,
        err or ''}
    end
    if claim then
      redis.call('ZADD', KEYS[5], now, due[i])
    end
  end
until #due == 0 or #reaped >= limit
redis.call('ZREMRANGEBYSCORE', KEYS[5], '-inf', now - 3600)
return reaped
