-- Give up watching queues, and have the first in line come.
--
-- KEYS: for each queue its watcher and its bell
-- ARGV: id of the channel, seconds that a bell lasts
-- Returns: how many queues have no watcher now.
--
-- Also what was passed to this channel, and which it heard and has no use for.
local free = 0
for number = 1, #KEYS, 2 do
  local holder = redis.pcall('GET', KEYS[number])
  if holder == ARGV[1] or holder == '' then
    redis.pcall('DEL', KEYS[number])
  end
  if not holder or holder == ARGV[1] or holder == '' then
    free = free + 1
    if redis.pcall('EXISTS', KEYS[number + 1]) == 0 then
      redis.pcall('RPUSH', KEYS[number + 1], '')
      redis.pcall('EXPIRE', KEYS[number + 1], ARGV[2])
    end
  end
end
return free
