-- Shared by the scripts that claim messages, begin their tasks and end their leases: exclusive keys.
--
-- A record says under `exclusive` which key the task needs: `key`, `limit`, `busy` (what to do if
-- the key is busy), `order` (the message's priority, and 0 if it was delivered before, else 1),
-- `place` (its place in the line, if it had one before) and `expires`. Tags of holders are in the
-- sorted set `holders.<key>`. Who waits is parked: held under a tag that nobody knows, with a score
-- that the reaper moves on, and in the sorted set `parked.<key>` as `<place> <tag>`; the hash
-- `parked` counts them by queue.
--
-- A place is `<priority>.<0 or 1>.<number>`, of a fixed width, where the number is the claim's token,
-- or one of the same row. It is in the message's text, behind the counters, so that who is woken and
-- comes too late is parked at the same place again.
-- Waking returns the message to the front of its queue, and reserves nothing.
-- All here is in pcall: the message that a script is about must not be held up by a key.
local PLACE_LENGTH, COUNTERS_END, REST_FROM = 22, 25, 29  -- of a place; in a payload; in a stored text
local PARKED_FOR = 60  -- seconds between two looks of a reaper
local EXCLUSIVE, PARKED = '"exclusive": {', '{"parked": '  -- in a record; before that of a parked message
local looked = 0  -- holders whose leases were looked at
local STALE = 8  -- entries of a line that are passed over in one call, if their message is gone

local function named(kind, key)
  return KEYS[2] .. '.' .. kind .. '.' .. key
end

-- Returns a record as a table if it has an exclusive key.
local function keyed(record)
  local found = type(record) == 'string' and string.find(record, EXCLUSIVE, 1, true)
  local claim = found and read(record)
  local facts = claim and claim.exclusive
  return type(facts) == 'table' and type(facts.key) == 'string' and claim or nil
end

-- Returns the key and the limit of a record that is not parked, without decoding it where it can.
local function needs(record)
  local _, last = string.find(record or '', EXCLUSIVE, 1, true)
  if not last or string.sub(record, 1, #PARKED) == PARKED then
    return nil
  end
  local key, limit = string.match(record, '^"key": "([^"\\]+)", "limit": (%d+),', last + 1)
  local claim = not key and keyed(record)
  if claim then
    key, limit = claim.exclusive.key, claim.exclusive.limit
  end
  return key, tonumber(limit)
end

-- Move what a holder held, whose lease has expired, to a tag that nobody knows: the holder cannot
-- extend it any more, and a reaper returns it. Returns whether the key is rid of it.
local function oust(key, tag)
  local value, record = redis.call('HGET', KEYS[2], tag), redis.call('HGET', KEYS[4], tag)
  local expiry = redis.call('ZSCORE', KEYS[1], tag)
  if value and record and expiry then
    if keep(tag .. '~', expiry, value, record) then
      return false
    end
    redis.pcall('HDEL', KEYS[4], tag)
    settle(tag)
  end
  redis.pcall('ZREM', named('holders', key), tag)
  return true
end

-- Whether one more may hold a key; *clear* ousts holders whose lease has expired.
local function is_free(key, limit, clear)
  local count = redis.pcall('ZCARD', named('holders', key))
  if type(count) == 'table' or count < limit then
    return type(count) ~= 'table'
  end
  local tags = redis.pcall('ZRANGE', named('holders', key), 0, -1)
  looked = looked + #tags
  local scores = #tags > 0 and redis.pcall('ZMSCORE', KEYS[1], unpack(tags)) or {err = true}
  for i, tag in ipairs(scores.err and {} or tags) do
    local over = not scores[i] or tonumber(scores[i]) <= now
    if over and (not clear or oust(key, tag)) then
      count = count - 1
    end
  end
  return count < limit
end

local function line_up(tag, claim)
  local key = named('parked', claim.exclusive.key)
  if redis.pcall('ZADD', key, 0, claim.parked .. ' ' .. tag) == 1 then
    redis.pcall('HINCRBY', KEYS[2] .. '.parked', claim.queue, 1)
  end
end

local function step_out(tag, claim)
  local key = named('parked', claim.exclusive.key)
  if redis.pcall('ZREM', key, claim.parked .. ' ' .. tag) == 1 then
    local left = redis.pcall('HINCRBY', KEYS[2] .. '.parked', claim.queue, -1)
    if type(left) == 'number' and left <= 0 then
      redis.pcall('HDEL', KEYS[2] .. '.parked', claim.queue)
    end
  end
end

-- Return a parked message to the front of its queue; *by*: the id of the task that replaces it, or
-- nil. Returns whether it was there and could go back.
local function unpark(tag, by)
  local value, record = redis.pcall('HGET', KEYS[2], tag), redis.pcall('HGET', KEYS[4], tag)
  local claim = keyed(record)
  if type(value) ~= 'string' or not claim or not redis.pcall('ZSCORE', KEYS[1], tag) then
    return false
  end
  local payload = string.sub(value, 2, -(claim.cut + 1))
  if by then
    local last = COUNTERS_END + #', "place": ""' + PLACE_LENGTH
    payload = string.sub(payload, 1, last) .. ', "replaced": ' .. cjson.encode(by)
      .. string.sub(payload, last + 1)
  end
  local pushed = redis.pcall('RPUSH', claim.key, payload)
  if type(pushed) == 'table' then
    return false
  end
  settle(tag)
  if redis.pcall('EXISTS', KEYS[2] .. '.bell') == 0 then
    redis.pcall('RPUSH', KEYS[2] .. '.bell', '')
  end
  return true
end

-- Wake the first in the line of a key, if the key is free for it.
local function wake(key)
  for _ = 1, STALE do
    local first = redis.pcall('ZRANGE', named('parked', key), 0, 0)[1]
    if not first then
      return
    end
    local tag = string.sub(first, PLACE_LENGTH + 2)
    local claim = keyed(redis.pcall('HGET', KEYS[4], tag))
    if claim and redis.pcall('ZSCORE', KEYS[1], tag) then
      if is_free(key, claim.exclusive.limit) then
        unpark(tag)
      end
      return
    end
    forget(tag)  -- a plain kombu sweep returned it
    redis.pcall('ZREM', named('parked', key), first)
  end
end

-- Free the key of a record that has ended: its own, or its place in the line.
release = function(tag, record)
  local key = needs(record)
  if key then
    redis.pcall('ZREM', named('holders', key), tag)
    wake(key)
    return
  end
  local claim = keyed(record)
  if claim and claim.parked then
    step_out(tag, claim)
  end
end

-- Acknowledge a message. Returns 1 (gone for good) or 0 (lost; nothing changed).
local function complete(tag)
  local answer = redis.call('ZREM', KEYS[1], tag)
  if answer == 1 then
    redis.call('HDEL', KEYS[2], tag)
  end
  forget(tag)
  return answer
end

-- Returns the id of a task that holds a key, as far as that is known.
local function holder_of(key)
  local tag = redis.pcall('ZRANGE', named('holders', key), 0, 0)[1]
  local claim = tag and keyed(redis.pcall('HGET', KEYS[4], tag))
  return claim and claim.id or ''
end

-- Whether a task holds a key; its id is looked for as it is, in records that are not decoded.
local function holds(key, id)
  local own = '"id": "' .. (id or '') .. '", '
  for _, tag in ipairs(redis.pcall('ZRANGE', named('holders', key), 0, -1)) do
    local record = redis.pcall('HGET', KEYS[4], tag)
    if type(record) == 'string' and string.find(record, own, 1, true) then
      return true
    end
  end
  return false
end

-- Returns a stored text as it is parked: with its place, and without this delivery, which does not
-- take place.
local function parked_text(value, place)
  local deliveries, losses = string.match(value, '^%[{"lease": "(%d+):(%d+)"')
  local rest = string.sub(value, REST_FROM)
  if string.sub(rest, 1, 10) == '"place": "' then
    rest = string.sub(rest, 10 + PLACE_LENGTH + 4)
  end
  return string.format('[{"lease": "%06d:%06d", "place": "%s", ', deliveries - 1, losses - 1, place)
    .. rest
end

-- Decide on a message whose key is busy. Returns 'parked', 'dropped' or 'replaced', and the id of
-- the task that is why; or nil and an error: then nothing has changed.
--
-- The one of two that is older is replaced, whichever of them comes last. A retry that comes before
-- the run that sent it has ended is parked.
local function turn_away(tag, value, record, claim)
  local facts, last = claim.exclusive, nil
  local holder = holder_of(facts.key)
  if facts.busy == 'drop' and not holds(facts.key, claim.id) then
    return 'dropped', holder
  end
  local place = facts.place
  if place == '' then
    local token = claim.token and string.format('%016.0f', claim.token)
    place = facts.order .. '.' .. (token or next_token())
  end
  if facts.busy == 'replace' then
    last = redis.pcall('ZRANGE', named('parked', facts.key), -1, -1)[1]
    local waiting = last and keyed(redis.pcall('HGET', KEYS[4], string.sub(last, PLACE_LENGTH + 2)))
    if waiting and string.sub(place, 5) < string.sub(last, 5, PLACE_LENGTH) then
      return 'replaced', waiting.id or ''
    end
  end
  claim.parked = place
  local err = keep(tag .. '~', now + PARKED_FOR, parked_text(value, place),
    PARKED .. '"' .. place .. '", ' .. string.sub(record, 2))
  if err then
    return nil, err
  end
  if last then
    unpark(string.sub(last, PLACE_LENGTH + 2), claim.id or '')
  end
  line_up(tag .. '~', claim)
  return 'parked', holder
end

