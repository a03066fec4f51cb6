-- Take the next message from the first of some lists that has one, and record where it is now. Claim
-- it, if it is known for how long; record it as a plain one, if its task is known to have no leases.
--
-- KEYS: unacked index, unacked, leases, claims, bell of those that poll, and the lists: the first of
--       each queue, then the second of each, and so on
-- ARGV: tag, seconds, id of the channel or nothing if it polls, letters (i it is idle, w it
--       watches, t it takes over, r it renews), the number of the queue whose bell it heard or 0, the
--       number of queues and their names; then, if first deliveries are to be claimed, the worker as
--       JSON, the names of tasks without leases, each between two line feeds, and two lines for each
--       task that it has leased before, behind an empty one: its name; the seconds of the lease, how
--       many may hold an exclusive key of it (0: it has none), and what they do if the key is busy
-- Returns: the list and the message's text and, if it is claimed, as lines, its token and what was
--       read of it: task, id, publisher's tag and, of a task with a key, key and priority, for the
--       asker to compare; 'plain', if it is recorded so. If there is none, to a channel that
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
local worker, without, with = ARGV[7 + queues], ARGV[8 + queues], ARGV[9 + queues]

-- Returns the text of the first field of a name in JSON, if it needs no decoding.
local function field(text, name, at)
  local _, last = string.find(text, '"' .. name .. '": "', at, true)
  return last and string.match(text, '^([^"\\]+)"', last + 1)
end

-- Returns what exclusive.lua reads of a message's key, the key and the priority; or nothing, if the
-- key is busy, or another script has to look at the message.
local function keyed(text, at, limit, busy)
  local key, _, last = field(text, 'lease_key', at), string.find(text, '"priority": ', at, true)
  local priority = key and last and string.match(text, '^(%d)[,}]', last + 1)
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
  local at = worker and string.sub(text, 1, #COUNTED) ~= COUNTED
    and string.find(text, HEADERS, 1, true)
  return at and field(text, 'task', at), at
end

-- Returns the seconds of the lease, the fields of its record, the text to be kept, and what the asker
-- compares; or nothing.
local function usual(text, task, at)
  local _, last = string.find(with, '\n' .. task .. '\n', 1, true)
  if not last then
    return nil
  end
  local seconds, limit, busy = string.match(with, '^(%S+) (%d+) (%S*)\n', last + 1)
  local id = seconds and field(text, 'id', at)
  local name = id and field(text, 'delivery_tag', at)
  local escape = name and string.find(text, '\\u', at, true)
  if not name or escape and string.find(text, '\\u[dD][89a-fA-F]', escape) then
    return nil  -- flagged.lua cannot read these
  end
  local exclusive, read_of_it = '', {task, id, name}
  if limit ~= '0' then
    exclusive, read_of_it[4], read_of_it[5] = keyed(text, at, tonumber(limit), busy)
    if not exclusive then
      return nil
    end
  end
  local token = next_token()
  local fields = '"token": ' .. token .. ', "since": ' .. string.format('%.3f', now)
    .. ', "waits": true, "task": "' .. task .. '", "id": "' .. id .. '", "worker": ' .. worker
    .. ', "deliveries": 1, "losses": 0, "raw": true, "name": "' .. name .. '", '
    .. exclusive
  return seconds, fields, '{"lease": "000001:000001", ' .. string.sub(text, 2),
    token .. '\n' .. table.concat(read_of_it, '\n')
end

-- Record a text that was taken out of a list. Returns what the asker compares, or nil; and an error.
local function arrived(i, text)
  local queue = cjson.encode(name_of(queue_of(i)))
  local suffix = ', "", ' .. queue .. ']'
  local task, at = task_of(text)
  if task and string.find(without, '\n' .. task .. '\n', 1, true)
      and string.sub(text, -1) == '}' then  -- sweep.lua looks for that
    return 'plain', keep_plain(ARGV[1], '[' .. text .. suffix)
  end
  local seconds, fields, kept, read_of_it
  if task then
    seconds, fields, kept, read_of_it = usual(text, task, at)
  end
  return read_of_it, keep(ARGV[1], now + tonumber(seconds or ARGV[2]),
    '[' .. (kept or text) .. suffix, '{' .. (fields or '"arriving": true, ') .. '"cut": ' .. #suffix
      .. ', "key": ' .. cjson.encode(KEYS[i]) .. ', "queue": ' .. queue .. '}')
end

for i = 6, #KEYS do
  local text = redis.pcall('RPOP', KEYS[i])
  if type(text) == 'table' then
    if not string.find(text.err, 'WRONGTYPE', 1, true) then
      return text
    end
    wrong = 'WRONGTYPE key ' .. KEYS[i] .. ' is no list of messages: ' .. text.err
    wrongs = wrongs + 1
  elseif text then
    local kept, reply, err = pcall(arrived, i, text)
    if not kept or err then
      redis.pcall('RPUSH', KEYS[i], text)
      return err or redis.error_reply(type(reply) == 'table' and reply.err or reply)
    end
    ring_for(i)
    return {KEYS[i], text, reply}
  end
end
return nothing()
