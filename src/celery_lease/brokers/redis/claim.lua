-- Record a message, just popped from its queue, as held under a lease.
--
-- KEYS: unacked index, unacked, leases, claims, last token, refusals
-- ARGV: tag, stored text, seconds, record (a JSON object of at least one field), and the tag of its
--       arrival or nothing
-- Returns: the fencing token, or nil if this claim was given up by its asker in the meantime, or the
--       message was returned to its queue because it was not claimed in time.
--
-- The tag names this one delivery, so whoever held the message before knows no name for it: that
-- is the fence. The score is the expiry itself, in server time, in kombu's own index.
-- Tokens only grow, also after the server lost its data: none is below the server's clock.
if redis.call('ZSCORE', KEYS[6], ARGV[1]) then
  return false
end
if ARGV[5] ~= '' and not arrived(ARGV[5]) then
  return false
end
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1000000
local token = math.max(tonumber(redis.call('GET', KEYS[5]) or '0') + 1,
  tonumber(time[1]) * 1000000 + tonumber(time[2]))
local text = string.format('%.0f', token)
local expiry = now + tonumber(ARGV[3])
redis.call('SET', KEYS[5], text)
redis.call('ZADD', KEYS[1], expiry, ARGV[1])
redis.call('HSET', KEYS[2], ARGV[1], ARGV[2])
redis.call('ZADD', KEYS[3], expiry, ARGV[1])
redis.call('HSET', KEYS[4], ARGV[1],
  '{"token": ' .. text .. ', "since": ' .. string.format('%.3f', now) .. ', '
  .. string.sub(ARGV[4], 2))
return text
