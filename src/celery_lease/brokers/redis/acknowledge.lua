-- Acknowledge messages that have no exclusive key, each only if its claim is still the asker's.
--
-- KEYS: unacked index, unacked, leases, claims
-- ARGV: tags
-- Returns: for each tag 1 (gone for good) or 0 (lost; nothing changed).
--
-- Nothing here needs memory.
local answers = {}
for i, tag in ipairs(ARGV) do
  answers[i] = redis.call('ZREM', KEYS[1], tag)
  if answers[i] == 1 then
    redis.call('HDEL', KEYS[2], tag)
  end
  redis.pcall('ZREM', KEYS[3], tag)
  redis.pcall('HDEL', KEYS[4], tag)
end
return answers
