-- Return messages to their queues, each only if its claim is still the asker's.
--
-- KEYS: unacked index, unacked, leases, claims
-- ARGV: '1' if orderly (not counted as a loss), RPUSH (front of the line) or LPUSH (back), tags
-- Returns: for each tag 1 (back in its queue) or 0 (lost; nothing changed).
local answers = {}
for i = 3, #ARGV do
  answers[i - 2] = restore(ARGV[i], ARGV[1] == '1', ARGV[2]) and 1 or 0
end
return answers
