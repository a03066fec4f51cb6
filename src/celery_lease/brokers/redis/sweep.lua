-- Return what plain consumers left unacknowledged for a visibility timeout, the oldest first.
--
-- KEYS: unacked index, unacked, leases, claims
-- ARGV: the most to return, the visibility timeout, and a JSON object: `prefix`, `sep`, `steps`,
--       `least`, `most` and `usual` (priorities), and `routes`: exchange -> routing key -> queues
-- Returns: two lists: of what was dealt with its tag, the seconds it was late, its queue, and why
--       it could not be returned, or nothing; and the exchange and routing key of what has to wait
--       until its queues are among the routes.
--
-- Kombu's own rule by the server's clock, without its mutex. A payload is not decoded as a whole:
-- kombu writes headers and properties last, and only these are read, for the priority, and to set
-- the flags that kombu sets. What is not in that form goes back as it is.
-- What cannot be returned stays, out of the way for a minute: it is never dropped.
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1000000
local limit, timeout, facts = tonumber(ARGV[1]), tonumber(ARGV[2]), cjson.decode(ARGV[3])
local HEADERS = '"headers": {'
local ROUNDS = 4  -- a bound on what is looked at and stays

local function decoded(text)
  local ok, value = pcall(cjson.decode, text)
  return ok and type(value) == 'table' and value or nil
end

-- Splits `[<payload>, "<exchange>", "<routing key>"]` at the last place that can be meant.
local function split(value)
  local payload, rest = string.match(value, '^%[(.*}), (["n].*)%]$')
  local route = rest and decoded('[' .. rest .. ']')
  if not route or #route ~= 2 then
    return nil
  end
  for i = 1, 2 do
    route[i] = type(route[i]) == 'string' and route[i] or ''
  end
  return payload, route[1], route[2]
end

local function with_flag(text, key)
  local _, last = string.find(text, '"' .. key .. '": {', 1, true)
  if not last then
    return text
  end
  local comma = string.sub(text, last + 1, last + 1) == '}' and '' or ', '
  return string.sub(text, 1, last) .. '"redelivered": true' .. comma .. string.sub(text, last + 1)
end

local function child(value, key)
  return value and type(value[key]) == 'table' and value[key] or {}
end

-- Returns the payload with kombu's flags, and its properties.
local function flagged(payload)
  local at = string.find(payload, HEADERS, 1, true)
  local tail = at and string.sub(payload, at)
  local read = tail and decoded('{' .. tail)
  if not read then  -- not in kombu's order
    return payload, child(decoded(payload), 'properties')
  end
  if child(read, 'headers').redelivered ~= true then
    tail = with_flag(tail, 'headers')
  end
  if child(child(read, 'properties'), 'delivery_info').redelivered ~= true then
    tail = with_flag(tail, 'delivery_info')
  end
  -- Only as it was meant: a foreign header may have the same name as one of kombu's keys.
  local now_read = decoded('{' .. tail)
  if not now_read or child(now_read, 'headers').redelivered ~= true then
    return payload, child(read, 'properties')
  end
  return string.sub(payload, 1, at - 1) .. tail, child(read, 'properties')
end

local function key_of(queue, properties)
  local given = tonumber(properties.priority)
  local priority = given and math.max(math.min(given, facts.most), facts.least) or facts.usual
  local step = facts.steps[#facts.steps]
  for i = #facts.steps, 1, -1 do
    if facts.steps[i] <= priority then
      step = facts.steps[i]
      break
    end
  end
  return facts.prefix .. queue .. (step ~= 0 and facts.sep .. string.format('%d', step) or '')
end

local function settle(tag)
  redis.call('ZREM', KEYS[1], tag)
  redis.call('HDEL', KEYS[2], tag)
end

-- Pushes a message to its queues; returns what went wrong before the first push that worked.
local function push(payload, queues)
  local text, properties = flagged(payload)
  local pushed, err = 0, 'no queue takes it'
  for _, queue in ipairs(queues) do
    local reply = redis.pcall('RPUSH', key_of(queue, properties), text)
    if type(reply) == 'table' and reply.err then
      err = reply.err
    else
      pushed = pushed + 1
    end
  end
  return pushed == 0 and err or nil
end

local done, unrouted, stay, rounds = {}, {}, 0, 0

local function deal_with(tag, score)
  local value = redis.call('HGET', KEYS[2], tag)
  if not value then
    settle(tag)
    return
  end
  if redis.call('HEXISTS', KEYS[4], tag) == 1 then
    stay = stay + 1  -- leased: the reaper's
    return
  end
  local payload, exchange, key = split(value)
  local queues = payload and child(facts.routes, exchange)[key]
  if payload and not queues then
    unrouted[#unrouted + 1] = {exchange, key}
    stay = stay + 1
    return
  end
  local err = 'its record cannot be read'
  if payload then
    err = push(payload, queues)
  end
  if err then
    redis.call('ZADD', KEYS[1], 'XX', now - timeout + 60, tag)
  else
    settle(tag)
  end
  done[#done + 1] = {tag, string.format('%.3f', now - timeout - tonumber(score)),
    queues and queues[1] or '', err or ''}
end

repeat
  rounds = rounds + 1
  local due = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now - timeout, 'WITHSCORES',
    'LIMIT', stay, limit - #done - #unrouted)
  for i = 1, #due, 2 do
    deal_with(due[i], due[i + 1])
  end
until #due == 0 or #done + #unrouted >= limit or rounds >= ROUNDS
return {done, unrouted}
