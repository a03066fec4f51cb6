-- Take the next message from the first of some lists that has one, and record where it is now.
--
-- KEYS: unacked index, unacked, leases, claims, bell, watches, lists
-- ARGV: tag, seconds, asker, and the name of each list's queue
-- Returns: the list and the message's text; if there is none, the list that is the asker's to
-- watch, or nil if others watch them all, or an error that begins with WRONGTYPE and names a key
-- that is no list, which does not keep others from theirs.
--
-- From its list into the record in one step: whoever asked may be dead by now. What is not claimed,
-- or taken by a consumer without leases, before the seconds are over goes back as it came, by a
-- reaper. The text is stored in kombu's form, so that a plain kombu sweep can restore it too.
-- Where there is one message there are often more. Whoever takes one and leaves some rings for one
-- of those that wait, or it would have filled its window before the first of them looks again.
-- A list has one watcher, so that a message wakes one who waits, not all. A watch ends with the
-- watcher's next message, or soon after the look that it did not come for.
local WATCH = 0.3  -- seconds; more than from one look of an idle asker to the next
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1000000

local function is_watched_by_others(list)
  local ends, watcher = string.match(redis.call('HGET', KEYS[6], list) or '', '^(%S+) (.*)$')
  return ends and watcher ~= ARGV[3] and tonumber(ends) > now
end

local wrong
for i = 7, #KEYS do
  local text = redis.pcall('RPOP', KEYS[i])
  if type(text) == 'table' then
    if not string.find(text.err, 'WRONGTYPE', 1, true) then
      return text
    end
    wrong = wrong or 'WRONGTYPE key ' .. KEYS[i] .. ' is no list of messages: ' .. text.err
  elseif text then
    local queue = ARGV[i - 3]
    local suffix = ', "", ' .. cjson.encode(queue) .. ']'
    local expiry = now + tonumber(ARGV[2])
    redis.call('ZADD', KEYS[1], expiry, ARGV[1])
    redis.call('HSET', KEYS[2], ARGV[1], '[' .. text .. suffix)
    redis.call('ZADD', KEYS[3], expiry, ARGV[1])
    redis.call('HSET', KEYS[4], ARGV[1],
      cjson.encode({arriving = true, cut = #suffix, key = KEYS[i], queue = queue}))
    if redis.call('EXISTS', KEYS[i]) == 1 and redis.call('EXISTS', KEYS[5]) == 0 then
      redis.call('RPUSH', KEYS[5], '')
    end
    if not is_watched_by_others(KEYS[i]) then
      redis.call('HDEL', KEYS[6], KEYS[i])
    end
    return {KEYS[i], text}
  end
end
if wrong then
  return redis.error_reply(wrong)
end
for i = 7, #KEYS do
  if not is_watched_by_others(KEYS[i]) then
    redis.call('HSET', KEYS[6], KEYS[i], string.format('%.3f %s', now + WATCH, ARGV[3]))
    redis.call('PEXPIRE', KEYS[6], math.ceil(1000 * WATCH))
    return {KEYS[i]}
  end
end
return false
