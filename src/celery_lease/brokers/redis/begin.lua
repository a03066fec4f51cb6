-- Note that the tasks of messages begin: from here on, an expiry of theirs is a loss.
--
-- KEYS: unacked index, unacked, leases, claims
-- ARGV: tags
-- Returns: for each tag 1 (noted) or 0 (its claim is over).
--
-- A claim that was made for a task that may have to wait says so in its record, at the front.
local WAITS = '"waits": true, '
local answers = {}
for i, tag in ipairs(ARGV) do
  local record = redis.call('HGET', KEYS[4], tag)
  local first, last = string.find(record or '', WAITS, 1, true)
  if first then
    redis.call('HSET', KEYS[4], tag,
      string.sub(record, 1, first - 1) .. string.sub(record, last + 1))
  end
  answers[i] = record and redis.call('ZSCORE', KEYS[1], tag) and 1 or 0
end
return answers
