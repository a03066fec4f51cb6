-- The first part of arrive.lua: who watches a queue, and who is called for its messages.
--
-- Where there is one message there are often more. Whoever takes one and leaves some rings for one
-- of those that wait, or it would have filled its window before the first of them looks again.
--
-- One idle channel watches a queue, the others stand in line at its bell. A watcher that takes a
-- message passes its place to the first in line: for PASSING ms nobody else may have it, so that
-- messages go round. A bell that nobody took meanwhile shows that nobody stands in line.
local WATCHING, PASSING, RINGING = 30000, 1000, 10  -- ms, ms, seconds
local me, letters, heard, queues = ARGV[3], ARGV[4], tonumber(ARGV[5]), tonumber(ARGV[6])
local wrong, wrongs = '', 0

local function is_so(letter)
  return string.find(letters, letter, 1, true) ~= nil
end

local function name_of(number)
  return ARGV[6 + number]
end

-- Returns the number of a list's queue.
local function queue_of(i)
  return (i - 6) % queues + 1
end

local function watcher(number)
  return KEYS[2] .. '.watcher.' .. name_of(number)
end

local function bell(number)
  return KEYS[2] .. '.bell.' .. name_of(number)
end

local function ring(number)
  if redis.pcall('EXISTS', bell(number)) == 0 then
    redis.pcall('RPUSH', bell(number), '')
    redis.pcall('EXPIRE', bell(number), RINGING)
  end
end

-- Whether something is left of a list, and nobody was called for it; mostly, one command tells.
local function is_unheard(i, key)
  return redis.pcall('EXISTS', KEYS[i], key) == 1 and redis.pcall('EXISTS', key) == 0
end

-- Have others come for what is left of a list, and pass on what this channel watches, or was to.
local function ring_for(i)
  if me == '' then
    if is_unheard(i, KEYS[5]) then
      redis.pcall('RPUSH', KEYS[5], '')
    end
    return
  end
  local passes = is_so('w')
  for number = passes and 1 or heard, passes and queues or heard do
    local holder = number > 0 and redis.pcall('GET', watcher(number))
    if passes and holder == me or number == heard and holder == '' then
      redis.pcall('SET', watcher(number), '', 'PX', PASSING)
      ring(number)
    end
  end
  local queue = queue_of(i)
  if is_unheard(i, bell(queue)) then
    ring(queue)
  end
end

-- Whether this channel watches a queue from now on, or still.
local function is_mine(number)
  local holder = redis.pcall('GET', watcher(number))
  if type(holder) == 'table' or holder == me and not is_so('r') then
    return holder == me
  end
  if holder == me or not holder or is_so('t') or holder == ''
      and (heard == number or redis.call('DEL', bell(number)) == 1) then
    redis.call('HDEL', KEYS[2], '')
    return redis.pcall('SET', watcher(number), me, 'PX', WATCHING).err == nil
  end
  return false
end

local function nothing()
  if me == '' then
    return wrongs > 0 and redis.error_reply(wrong)
  end
  local mine = {}
  for number = 1, queues do
    if is_mine(number) then
      mine[#mine + 1] = number
    end
  end
  return {'', table.concat(mine, ' ') .. '\n' .. wrongs .. '\n' .. wrong}
end

-- What an idle channel asks from time to time adds up; this is one command, whatever its lists.
if is_so('i') and redis.call('EXISTS', unpack(KEYS, 6)) == 0 then
  return nothing()
end
