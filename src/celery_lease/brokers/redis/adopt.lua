-- Record a message that arrived as kombu records one without a lease.
--
-- KEYS: unacked index, unacked, leases, claims
-- ARGV: tag of the arrival, delivery tag, stored text
-- Returns: 1, or 0 if the message was returned to its queue in the meantime.
if not arrived(ARGV[1]) then
  return 0
end
local time = redis.call('TIME')
redis.call('ZADD', KEYS[1], tonumber(time[1]) + tonumber(time[2]) / 1000000, ARGV[2])
redis.call('HSET', KEYS[2], ARGV[2], ARGV[3])
return 1
