-- Take one letter out of a dead-letter queue, and put it into another list if there is one.
--
-- KEYS: unacked index, unacked, names of the dead-letter queues, dead-letter queue, other list
-- ARGV: the queue's name, the letter as it is, and as it is to be put into the other list, or ''
-- Returns: 1, or 0 if it was not there any more; then nothing changed.
if redis.call('LREM', KEYS[4], -1, ARGV[2]) == 0 then
  return 0
end
if ARGV[3] ~= '' then
  redis.call('LPUSH', KEYS[5], ARGV[3])
end
if redis.call('EXISTS', KEYS[4]) == 0 then
  redis.call('SREM', KEYS[3], ARGV[1])
end
return 1
