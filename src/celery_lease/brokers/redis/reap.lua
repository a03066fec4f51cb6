-- Return expired leases to the front of their queues, the longest expired first.
--
-- KEYS: unacked index, unacked, leases, claims, refusals
-- ARGV: the most to return
-- Returns: for each one its tag, the seconds since its expiry, its claim record, and why it could
-- not be returned, or nothing.
--
-- Cost grows with what has expired, not with what is held; a lease that is extended in the same
-- instant is either extended before this runs, and stays, or after, and is lost.
-- What cannot be returned comes on top of the limit, for it must not hold up the other queues; it is
-- out of the way for a minute then.
-- Records without a message, as a plain kombu sweep leaves them, are cleared on the way. A refusal
-- tells an asker who never heard of its claim that the claim is over; it is kept for an hour.
local limit = tonumber(ARGV[1])
local most = 4 * limit  -- told of in one call, whatever became of them
local reaped, returned = {}, 0
repeat
  local due = redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', now, 'WITHSCORES',
    'LIMIT', 0, limit - returned)
  for i = 1, #due, 2 do
    local claim, err, record = restore(due[i], 'expired', 'RPUSH')
    if record then
      reaped[#reaped + 1] = {due[i], string.format('%.3f', now - tonumber(due[i + 1])), record,
        err or ''}
    end
    if claim then
      returned = returned + 1
    end
    if claim or not record then  -- returned here, or by a plain kombu sweep before
      redis.call('ZADD', KEYS[5], now, due[i])
    end
  end
until #due == 0 or returned >= limit or #reaped >= most
redis.call('ZREMRANGEBYSCORE', KEYS[5], '-inf', now - 3600)
return reaped
