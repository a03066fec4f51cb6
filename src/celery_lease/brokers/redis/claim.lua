-- Record a message, just popped from its queue, as held under a lease, or park it.
--
-- KEYS: unacked index, unacked, leases, claims, last token, refusals
-- ARGV: tag, stored text, seconds, record (a JSON object of at least one field), the tag of its
--       arrival or nothing, and '1' if it is to be parked or turned away if its key is busy
-- Returns: nil if this claim was given up by its asker in the meantime, or the message was returned
--       to its queue because it was not claimed in time. Else the fencing token, or '' if it is
--       parked; and 'parked', 'dropped' or 'replaced' with the id of the task that is why, if so.
--
-- The tag names this one delivery, so whoever held the message before knows no name for it: that
-- is the fence. The score is the expiry itself, in server time, in kombu's own index.
if redis.call('ZSCORE', KEYS[6], ARGV[1]) then
  return false
end
if ARGV[5] ~= '' and not is_kept(ARGV[5]) then
  return false
end

local function with(token)
  return '{"token": ' .. token .. ', "since": ' .. string.format('%.3f', now) .. ', '
    .. string.sub(ARGV[4], 2)
end

local claim = ARGV[6] == '1' and keyed(ARGV[4])
local verdict, by
if claim and not is_free(claim.exclusive.key, claim.exclusive.limit) then
  verdict, by = turn_away(ARGV[1], ARGV[2], with('0'), claim)
  if not verdict then
    return by
  end
end
local token = ''
if verdict == 'parked' then
  redis.pcall('ZADD', KEYS[6], now, ARGV[1])  -- this claim is over, should its asker not hear of it
else
  token = next_token()
  local err = keep(ARGV[1], now + tonumber(ARGV[3]), ARGV[2], with(token))
  if err then
    return err
  end
end
if ARGV[5] ~= '' then
  settle(ARGV[5])
end
return {token, verdict or '', by or ''}
