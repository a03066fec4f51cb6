-- Return expired leases to the front of their queues, the longest expired first.
--
-- KEYS: unacked index, unacked, leases, claims
-- ARGV: the most to return
-- Returns: for each one its tag, the seconds since its expiry, and its claim record.
--
-- Cost grows with what has expired, not with what is held; a lease that is extended in the same
-- instant is either extended before this runs, and stays, or after, and is lost.
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1000000
local due = redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', now, 'WITHSCORES', 'LIMIT', 0, ARGV[1])
local reaped = {}
for i = 1, #due, 2 do
  local record = redis.call('HGET', KEYS[4], due[i])
  if restore(due[i], false, 'RPUSH') then
    reaped[#reaped + 1] = {due[i], string.format('%.3f', now - tonumber(due[i + 1])), record}
  end
end
return reaped
