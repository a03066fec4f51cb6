-- Return what plain consumers left unacknowledged for a visibility timeout; the last of the tags is
-- delivered first.
--
-- KEYS: unacked index, unacked, leases, claims
-- ARGV: the visibility timeout; a JSON object: `prefix`, `sep`, `steps`, `least`, `most` and `usual`
--       (priorities), and `routes`: exchange -> routing key -> queues; and tags
-- Returns: how many of the tags were dealt with; of what was due its tag, the seconds it was late,
--       its queue, and why it could not be returned, or nothing; and, if the next tag has to wait
--       until its queues are among the routes, its exchange and routing key. Where messages are
--       long, fewer are dealt with.
--
-- Kombu's own rule by the server's clock, without its mutex.
-- What cannot be returned stays, out of the way for a minute: it is never dropped.
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1000000
local timeout, facts = tonumber(ARGV[1]), cjson.decode(ARGV[2])
local MOST_BYTES = 64 * 1024  -- moved by one call; each is searched and copied more often than a lease

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

local done, seen, moved = {}, 0, 0

-- Returns the exchange and routing key that the message has to wait for.
local function deal_with(tag, score)
  local value = redis.call('HGET', KEYS[2], tag)
  if not value then
    redis.pcall('ZREM', KEYS[1], tag)
    return nil
  end
  if redis.call('HEXISTS', KEYS[4], tag) == 1 then
    return nil  -- leased: the reaper's
  end
  local payload, exchange, key = split(value)
  local queues = payload and child(facts.routes, exchange)[key]
  if payload and not queues then
    return {exchange, key}
  end
  moved = moved + #value
  local err = 'its record cannot be read'
  if payload then
    err = push(payload, queues)
  end
  if err then
    redis.pcall('ZADD', KEYS[1], 'XX', now - timeout + 60, tag)
  else
    redis.call('HDEL', KEYS[2], tag)
    redis.pcall('ZREM', KEYS[1], tag)
  end
  done[#done + 1] = {tag, string.format('%.3f', now - timeout - tonumber(score)),
    queues and queues[1] or '', err or ''}
end

for i = 3, #ARGV do
  local score = redis.call('ZSCORE', KEYS[1], ARGV[i])
  local route = score and tonumber(score) <= now - timeout and deal_with(ARGV[i], score)
  if route then
    return {seen, done, route}
  end
  seen = seen + 1
  if moved >= MOST_BYTES then
    break
  end
end
return {seen, done}
