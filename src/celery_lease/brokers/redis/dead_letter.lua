-- Move a claimed message to a dead-letter queue, only if its claim is still the asker's.
--
-- KEYS: unacked index, unacked, leases, claims, refusals, names of the dead-letter queues
-- ARGV: tag, key of the dead-letter queue, its name, what the letter is about as JSON
-- Returns: 1 (there now, also by an earlier call that was not answered) or 0 (lost; nothing
-- changed).
--
-- A dead letter is a message as any other, with its counters back at nought, so that whatever moves
-- it to a queue has it run again. Beside them it has a key `dead`: since when, where it came from,
-- and the claims that it was lost under.
local PAYLOAD_FROM = 28
local tag, note = ARGV[1], ARGV[1] .. ' buried'
if redis.call('ZSCORE', KEYS[5], note) then
  return 1
end
local value, record = held(tag)
if not value then
  return 0
end
local claim = read(record)
if not claim then
  return redis.error_reply('ERR ' .. UNREADABLE)
end
local payload = payload_of(value, record, claim)
local past = redis.pcall('LRANGE', history(tag, record), 0, -1)
local letter = '{"lease": "000000:000000", "dead": {' .. string.format('"at": %.3f', now)
  .. ', "deliveries": ' .. string.format('%d', claim.deliveries)
  .. ', "losses": ' .. string.format('%d', claim.losses)
  .. ', "queue": ' .. cjson.encode(claim.queue) .. ', "key": ' .. cjson.encode(claim.key)
  .. ', "about": ' .. ARGV[4]
  .. ', "history": [' .. (past.err and '' or table.concat(past, ', ')) .. ']}, '
  .. string.sub(payload, PAYLOAD_FROM)
redis.call('ZADD', KEYS[5], 'XX', now, note)  -- changes nothing; fails here, if at all
local is_new = redis.call('SADD', KEYS[6], ARGV[3]) == 1
local pushed = redis.pcall('LPUSH', ARGV[2], letter)
if type(pushed) == 'table' and pushed.err then
  if is_new then
    redis.pcall('SREM', KEYS[6], ARGV[3])
  end
  return pushed
end
settle(tag)
redis.pcall('ZADD', KEYS[5], now, note)
redis.pcall('DEL', history(tag, record))
return 1
