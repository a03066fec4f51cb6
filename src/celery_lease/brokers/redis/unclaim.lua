-- Return a message that was popped from its queue but whose claim was not answered.
--
-- KEYS: unacked index, unacked, leases, claims, refusals
-- ARGV: tag, queue key or nothing if the answer was not heard, payload, the tag of its arrival or
--       nothing, and the visibility timeout
-- Returns: 1
--
-- The claim may have been made and may even have ended since; it may never be made, or may still
-- lie in a socket's buffer. In the last case it must not be made later: the refusal prevents that. It
-- also shows a second call, made because the first was not answered, that nothing is left to do.
if redis.call('ZSCORE', KEYS[5], ARGV[1]) then
  return 1
end
redis.call('ZADD', KEYS[5], 'XX', now, ARGV[1])  -- changes nothing; fails here, if at all
if redis.call('HEXISTS', KEYS[4], ARGV[1]) == 1 then
  restore(ARGV[1], false, 'RPUSH')
elseif ARGV[4] == '' then
  redis.call('RPUSH', ARGV[2], ARGV[3])
elseif ARGV[2] == '' then  -- recorded as a plain one, or not at all: due for the next sweep
  redis.call('ZADD', KEYS[1], 'XX', now - tonumber(ARGV[5]), ARGV[4])
elseif is_kept(ARGV[4]) then
  redis.call('RPUSH', ARGV[2], ARGV[3])
  settle(ARGV[4])
end
redis.pcall('ZADD', KEYS[5], now, ARGV[1])
return 1
