-- Record a message that arrived as kombu records one without a lease.
--
-- KEYS: unacked index, unacked, leases, claims
-- ARGV: tag of the arrival, delivery tag, stored text
-- Returns: 1, or 0 if the message was returned to its queue in the meantime, or will be.
--
-- An asker that hears nothing gives up when the arrival's time is over. Adopted later than that, the
-- message would wait for a whole visibility timeout; as it is, it waits for a reaper.
local score = redis.call('ZSCORE', KEYS[1], ARGV[1])
if not score or tonumber(score) <= now or not is_kept(ARGV[1]) then
  return 0
end
local err = keep_plain(ARGV[2], ARGV[3])
if err then
  return err
end
settle(ARGV[1])
return 1
