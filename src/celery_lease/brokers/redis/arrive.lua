-- Take the next message from the first of some lists that has one, and record where it is now.
--
-- KEYS: unacked index, unacked, leases, claims, bell, lists
-- ARGV: tag, seconds, and the name of each list's queue
-- Returns: the list and the message's text; or, if there is none, nil, or an error that begins with
-- WRONGTYPE and names a key that is no list, which does not keep others from theirs.
--
-- From its list into the record in one step: whoever asked may be dead by now. What is not claimed,
-- or taken by a consumer without leases, before the seconds are over goes back as it came, by a
-- reaper. The text is stored in kombu's form, so that a plain kombu sweep can restore it too.
-- Where there is one message there are often more. Whoever takes one and leaves some rings for one
-- of those that wait, or it would have filled its window before the first of them looks again.
local time = redis.call('TIME')
local wrong
for i = 6, #KEYS do
  local text = redis.pcall('RPOP', KEYS[i])
  if type(text) == 'table' then
    if not string.find(text.err, 'WRONGTYPE', 1, true) then
      return text
    end
    wrong = wrong or 'WRONGTYPE key ' .. KEYS[i] .. ' is no list of messages: ' .. text.err
  elseif text then
    local queue = ARGV[i - 3]
    local suffix = ', "", ' .. cjson.encode(queue) .. ']'
    local expiry = tonumber(time[1]) + tonumber(time[2]) / 1000000 + tonumber(ARGV[2])
    redis.call('ZADD', KEYS[1], expiry, ARGV[1])
    redis.call('HSET', KEYS[2], ARGV[1], '[' .. text .. suffix)
    redis.call('ZADD', KEYS[3], expiry, ARGV[1])
    redis.call('HSET', KEYS[4], ARGV[1],
      cjson.encode({arriving = true, cut = #suffix, key = KEYS[i], queue = queue}))
    if redis.call('EXISTS', KEYS[i]) == 1 and redis.call('EXISTS', KEYS[5]) == 0 then
      redis.call('RPUSH', KEYS[5], '')
    end
    return {KEYS[i], text}
  end
end
return wrong and redis.error_reply(wrong) or false
