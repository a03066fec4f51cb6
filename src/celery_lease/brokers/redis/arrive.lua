-- Take the next message from the first of some lists that has one, and record where it is now. Claim
-- it, if it is known for how long.
--
-- KEYS: unacked index, unacked, leases, claims, bell of those that poll, lists, and for each queue
--       of a channel that waits its watcher and its bell
-- ARGV: tag, seconds, number of lists, id of the channel or nothing if it polls, letters
--       (i it is idle, w it watches, t it takes over, r it renews), the number of
--       the queue whose bell it heard or 0, and the name of each list's queue; then, if first
--       deliveries are to be claimed, the worker as JSON and, for tasks that it has leased before,
--       name and seconds of the lease
-- Returns: the list and the message's text and, if it is claimed, its token and what was read of it:
--       task, id and publisher's tag, for the asker to compare. If there is none, to a channel that
--       polls nil or an error that begins with WRONGTYPE and names a key that is no list; to one that
--       waits an empty text and, as lines, the numbers of the queues that it watches, how many keys
--       are no lists, and the error of one of them. Such a key does not keep others from theirs.
--
-- From its list into the record in one step: whoever asked may be dead by now. What cannot be
-- recorded goes back. What is not claimed,
-- or taken by a consumer without leases, before the seconds are over goes back as it came, by a
-- reaper. The text is stored in kombu's form, so that a plain kombu sweep can restore it too.
-- A claim for the usual time, which a busy worker asks for, spares it a second call for nearly every
-- message. What is read of the text is not decoded: the asker decodes it, and claims it again if it
-- reads something else or needs another lease.
-- Where there is one message there are often more. Whoever takes one and leaves some rings for one
-- of those that wait, or it would have filled its window before the first of them looks again.
--
-- One idle channel watches a queue, the others stand in line at its bell. A watcher that takes a
-- message passes its place to the first in line: for PASSING ms nobody else may have it, so that
-- messages go round. A bell that nobody took meanwhile shows that nobody stands in line.
local WATCHING, PASSING, RINGING = 30000, 1000, 10  -- ms, ms, seconds
local COUNTED, HEADERS = '{"lease": "', '"headers": {'
local lists, me, letters, heard = tonumber(ARGV[3]), ARGV[4], ARGV[5], tonumber(ARGV[6])
local queues = (#KEYS - 5 - lists) / 2
local wrong, wrongs = '', 0

local function is_so(letter)
  return string.find(letters, letter, 1, true) ~= nil
end

local function watcher(number)
  return KEYS[4 + lists + 2 * number]
end

local function bell(number)
  return KEYS[5 + lists + 2 * number]
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
  local next_queue = (i - 6) % queues + 1
  if is_unheard(i, bell(next_queue)) then
    ring(next_queue)
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

-- Returns the seconds of the lease, the fields of its record, the text to be kept, and what the asker
-- compares; or nothing.
local function usual(text)
  local worker = ARGV[7 + lists]
  local at = worker and string.sub(text, 1, #COUNTED) ~= COUNTED
    and string.find(text, HEADERS, 1, true)
  local task = at and string.match(text, '"task": "([^"\\]+)"', at)
  local seconds
  for i = 8 + lists, #ARGV, 2 do
    seconds = ARGV[i] == task and ARGV[i + 1] or seconds
  end
  local id = seconds and string.match(text, '"id": "([^"\\]+)"', at)
  local name = id and string.match(text, '"delivery_tag": "([^"\\]+)"', at)
  if not name or string.find(text, '\\u[dD][89a-fA-F]', at) then  -- flagged.lua cannot read these
    return nil
  end
  local token = next_token()
  local fields = '"token": ' .. token .. ', "since": ' .. string.format('%.3f', now)
    .. ', "waits": true, "task": "' .. task .. '", "id": "' .. id .. '", "worker": ' .. worker
    .. ', "deliveries": 1, "losses": 0, "raw": true, "name": "' .. name .. '", '
  return seconds, fields, '{"lease": "000001:000001", ' .. string.sub(text, 2),
    {token, task, id, name}
end

-- Record a text that was taken out of a list. Returns what the asker compares, or an error.
local function arrived(i, text)
  local queue = ARGV[i + 1]
  local suffix = ', "", ' .. cjson.encode(queue) .. ']'
  local seconds, fields, kept, read_of_it = usual(text)
  return keep(ARGV[1], now + tonumber(seconds or ARGV[2]), '[' .. (kept or text) .. suffix,
    '{' .. (fields or '"arriving": true, ') .. '"cut": ' .. #suffix .. ', "key": '
      .. cjson.encode(KEYS[i]) .. ', "queue": ' .. cjson.encode(queue) .. '}') or read_of_it or {}
end

-- What an idle channel asks from time to time adds up; this is one command, whatever its lists.
if is_so('i') and redis.call('EXISTS', unpack(KEYS, 6, 5 + lists)) == 0 then
  return nothing()
end
for i = 6, 5 + lists do
  local text = redis.pcall('RPOP', KEYS[i])
  if type(text) == 'table' then
    if not string.find(text.err, 'WRONGTYPE', 1, true) then
      return text
    end
    wrong = 'WRONGTYPE key ' .. KEYS[i] .. ' is no list of messages: ' .. text.err
    wrongs = wrongs + 1
  elseif text then
    local kept, reply = pcall(arrived, i, text)
    if not kept or reply.err then
      redis.pcall('RPUSH', KEYS[i], text)
      return kept and reply or redis.error_reply(type(reply) == 'table' and reply.err or reply)
    end
    ring_for(i)
    return {KEYS[i], text, unpack(reply)}
  end
end
return nothing()
