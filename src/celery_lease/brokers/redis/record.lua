-- Shared by all scripts that keep or move a message: the order in which nothing is lost.
--
-- The text in the hash `unacked` is the message; what lies beside it only says whose it is. Most
-- scripts begin with an HDEL there (though_full.lua), so that taking a text away cannot fail any
-- more: what may fail comes before it, what only tidies up comes after it, in pcall.
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1000000
local release  -- frees the exclusive key of what ends; set by exclusive.lua

-- Returns a claim's record as a table, or nil.
local function read(record)
  local ok, claim = pcall(cjson.decode, record)
  local good = ok and type(claim) == 'table' and type(claim.cut) == 'number'
  return good and type(claim.key) == 'string' and claim or nil
end

local function error_in(reply)
  return type(reply) == 'table' and reply.err and reply or nil
end

-- Tokens only grow, also after the server lost its data: none is below the server's clock; a counter
-- that is no number counts as none.
local function next_token()
  local key, token = KEYS[2] .. '.token', tonumber(time[1]) * 1000000 + tonumber(time[2])
  local text = string.format('%.0f', token)
  local last = tonumber(redis.call('SET', key, text, 'GET') or '0')
  if last and last >= token and last < 2 ^ 53 then
    text = string.format('%.0f', last + 1)
    redis.call('SET', key, text)
  end
  return text
end

-- Forget what lies beside a text.
local function forget(tag)
  local record = release and redis.pcall('HGET', KEYS[4], tag)
  redis.pcall('ZREM', KEYS[3], tag)
  redis.pcall('HDEL', KEYS[4], tag)
  if type(record) == 'string' then
    release(tag, record)
  end
end

-- End a record. It cannot fail.
local function settle(tag)
  redis.call('HDEL', KEYS[2], tag)
  redis.pcall('ZREM', KEYS[1], tag)
  forget(tag)
end

-- Record a message under a tag, as a whole or not at all. Returns an error, or nil.
local function keep(tag, expiry, text, claim)
  local err = error_in(redis.pcall('ZADD', KEYS[1], expiry, tag))
    or error_in(redis.pcall('ZADD', KEYS[3], expiry, tag))
    or error_in(redis.pcall('HSET', KEYS[4], tag, claim))
    or error_in(redis.pcall('HSET', KEYS[2], tag, text))
  if err then
    settle(tag)
  end
  return err
end

-- Record a message under a tag as kombu records one without a lease, or not at all. Returns an
-- error, or nil.
local function keep_plain(tag, text)
  redis.call('ZADD', KEYS[1], now, tag)
  local err = error_in(redis.pcall('HSET', KEYS[2], tag, text))
  if err then
    redis.pcall('ZREM', KEYS[1], tag)
  end
  return err
end

-- Whether a message is recorded under a tag; clears what a plain kombu sweep has left of one.
local function is_kept(tag)
  if redis.call('ZSCORE', KEYS[1], tag) and redis.call('HEXISTS', KEYS[2], tag) == 1 then
    return true
  end
  forget(tag)
  return false
end

