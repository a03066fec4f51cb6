-- Take the next message from the first of some lists that has one, and record where it is now. Claim
-- it, if it is known for how long; record it as a plain one, if its task is known to have no leases.
--
-- KEYS: unacked index, unacked, leases, claims, bell of those that poll, lists, and for each queue
--       of a channel that waits its watcher and its bell
-- ARGV: tag, seconds, number of lists, id of the channel or nothing if it polls, letters
--       (i it is idle, w it watches, t it takes over, r it renews), the number of
--       the queue whose bell it heard or 0, and the name of each list's queue; then, if first
--       deliveries are to be claimed, the worker as JSON, the names of tasks without leases, each
--       between two line feeds, and, for tasks that it has leased before, name, seconds of the
--       lease, how many may hold an exclusive key of it (0: it has none), and what they do if the
--       key is busy
-- Returns: the list and the message's text and, if it is claimed, its token and what was read of it:
--       task, id, publisher's tag and, of a task with a key, key and priority, for the asker to
--       compare; 'plain', if it is recorded so. If there is none, to a channel that
--       polls nil or an error that begins with WRONGTYPE and names a key that is no list; to one that
--       waits an empty text and, as lines, the numbers of the queues that it watches, how many keys
--       are no lists, and the error of one of them. Such a key does not keep others from theirs.
--
-- From its list into the record in one step: whoever asked may be dead by now. What cannot be
-- recorded goes back at once; what is not claimed, or taken by a consumer without leases, before the
-- seconds are over goes back as it came, by a reaper. The text is stored in kombu's form, so that a
-- plain kombu sweep can restore it too.
-- A claim for the usual time, which a worker that expects a message asks for, spares it a second call
-- for nearly every message. What is read of the text is not decoded: the asker decodes it, and claims it again if it
-- reads something else or needs another lease. A message whose key is busy is not claimed here. A
-- plain one is recorded as kombu does, but under this tag and with the queue it came from as its
-- route: a second call is spared there, too.
local COUNTED, HEADERS = '{"lease": "', '"headers": {'

-- Returns what exclusive.lua reads of a message's key, the key and the priority; or nothing, if the
-- key is busy, or another script has to look at the message.
local function keyed(text, at, limit, busy)
  local key = string.match(text, '"lease_key": "([^"\\]+)"', at)
  local priority = key and string.match(text, '"priority": (%d)[,}]', at)
  local count = priority and not string.find(text, '"expires": "', at, true)
    and redis.pcall('ZCARD', KEYS[2] .. '.holders.' .. key)
  if type(count) ~= 'number' or count >= limit then
    return nil
  end
  return '"exclusive": {"key": "' .. key .. '", "limit": ' .. limit .. ', "busy": "' .. busy
    .. '", "order": "00' .. priority .. '.1", "place": "", "expires": null}, ', key, priority
end

-- Returns the task of a first delivery, if it can be told, and where the text's headers begin.
local function task_of(text)
  local at = ARGV[7 + lists] and string.sub(text, 1, #COUNTED) ~= COUNTED
    and string.find(text, HEADERS, 1, true)
  return at and string.match(text, '"task": "([^"\\]+)"', at), at
end

-- Returns the seconds of the lease, the fields of its record, the text to be kept, and what the asker
-- compares; or nothing.
local function usual(text, task, at)
  local seconds, limit, busy
  for i = 9 + lists, #ARGV, 4 do
    if ARGV[i] == task then
      seconds, limit, busy = ARGV[i + 1], tonumber(ARGV[i + 2]), ARGV[i + 3]
    end
  end
  local id = seconds and string.match(text, '"id": "([^"\\]+)"', at)
  local name = id and string.match(text, '"delivery_tag": "([^"\\]+)"', at)
  if not name or string.find(text, '\\u[dD][89a-fA-F]', at) then  -- flagged.lua cannot read these
    return nil
  end
  local exclusive, key, priority = '', nil, nil
  if limit > 0 then
    exclusive, key, priority = keyed(text, at, limit, busy)
    if not key then
      return nil
    end
  end
  local token = next_token()
  local fields = '"token": ' .. token .. ', "since": ' .. string.format('%.3f', now)
    .. ', "waits": true, "task": "' .. task .. '", "id": "' .. id .. '", "worker": ' .. ARGV[7 + lists]
    .. ', "deliveries": 1, "losses": 0, "raw": true, "name": "' .. name .. '", '
    .. exclusive
  return seconds, fields, '{"lease": "000001:000001", ' .. string.sub(text, 2),
    {token, task, id, name, key, priority}
end

-- Record a text that was taken out of a list. Returns what the asker compares, or an error.
local function arrived(i, text)
  local queue = ARGV[i + 1]
  local suffix = ', "", ' .. cjson.encode(queue) .. ']'
  local task, at = task_of(text)
  if task and string.find(ARGV[8 + lists], '\n' .. task .. '\n', 1, true)
      and string.sub(text, -1) == '}' then  -- sweep.lua looks for that
    return keep_plain(ARGV[1], '[' .. text .. suffix) or {'plain'}
  end
  local seconds, fields, kept, read_of_it = usual(text, task, at)
  return keep(ARGV[1], now + tonumber(seconds or ARGV[2]), '[' .. (kept or text) .. suffix,
    '{' .. (fields or '"arriving": true, ') .. '"cut": ' .. #suffix .. ', "key": '
      .. cjson.encode(KEYS[i]) .. ', "queue": ' .. cjson.encode(queue) .. '}') or read_of_it or {}
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
