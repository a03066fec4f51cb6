-- Goes before every other script: lets it write although the server is over its `maxmemory`.
--
-- A held message must not become homeless because memory is short. A server refuses only the first
-- write of a script, and only a write that may need memory (Redis 6.2 to 8, Valkey 7.2 to 9); this
-- one needs none and changes nothing. No script flags: they need Redis 7 and ask for a shebang.
redis.call('HDEL', KEYS[2], '')

