-- Take one letter out of a dead-letter queue, and put it into another list if there is one.
--
-- KEYS: unacked index, unacked, names of the dead-letter queues, dead-letter queue, other list
-- ARGV: the queue's name, the letter as it is, and as it is to be put into the other list, or '';
--       1 to look for it from the newest on, -1 from the oldest on, whichever is nearer
-- Returns: 1, or 0 if it was not there any more; then nothing changed.
--
-- It is put there first, and taken back if it was not here.
if ARGV[3] ~= '' then
  redis.call('LPOP', KEYS[5], 0)  -- takes nothing; fails here, if at all
  redis.call('LPUSH', KEYS[5], ARGV[3])
end
local removed = redis.pcall('LREM', KEYS[4], ARGV[4], ARGV[2])
if removed ~= 1 then
  if ARGV[3] ~= '' then
    redis.pcall('LPOP', KEYS[5])
  end
  return removed
end
if redis.call('EXISTS', KEYS[4]) == 0 then
  redis.pcall('SREM', KEYS[3], ARGV[1])
end
return 1
