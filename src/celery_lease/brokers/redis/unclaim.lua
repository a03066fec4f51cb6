-- Return a message that was popped from its queue but whose claim was not answered.
--
-- KEYS: unacked index, unacked, leases, claims, refusals
-- ARGV: tag, queue key, payload
-- Returns: 1
--
-- The claim may have been made, may never be made, or may still lie in a socket's buffer. In the
-- last case it must not be made later: the refusal tells it so, and goes away after an hour.
if redis.call('ZSCORE', KEYS[1], ARGV[1]) then
  restore(ARGV[1], true, 'RPUSH')
else
  local now = tonumber(redis.call('TIME')[1])
  redis.call('ZREMRANGEBYSCORE', KEYS[5], '-inf', now - 3600)
  redis.call('ZADD', KEYS[5], now, ARGV[1])
  redis.call('RPUSH', ARGV[2], ARGV[3])
end
return 1
