-- Save, load, forget or retire a task's checkpoint, each only if no later run was here.
--
-- KEYS: a hash of two fields: token, the largest fencing token that was here; text, the checkpoint
-- ARGV: command, fencing token, seconds to keep the key (0: for good), text (to save)
-- Returns: 1 (done) or 0 (a larger token was here; nothing changed), and the text (to load).
--
-- Loading leaves the token too: whoever held the task before cannot save behind the reader's back.
-- Forgetting keeps the token for a while, against a former holder that was paused before it saved.
local command, token = ARGV[1], ARGV[2]
local stored = redis.call('HGET', KEYS[1], 'token')
local text = command == 'load' and redis.call('HGET', KEYS[1], 'text') or false
if stored and tonumber(stored) > tonumber(token) then
  return {0, text}
end
if command == 'retire' and not stored then
  return {1, text}
end
redis.call('HSET', KEYS[1], 'token', token)
if command == 'save' then
  redis.call('HSET', KEYS[1], 'text', ARGV[4])
elseif command == 'forget' then
  redis.call('HDEL', KEYS[1], 'text')
end
if tonumber(ARGV[3]) > 0 then
  redis.call('EXPIRE', KEYS[1], ARGV[3])
else
  redis.call('PERSIST', KEYS[1])
end
return {1, text}
