-- Move the expiry of many leases, each only if it is still the asker's.
--
-- KEYS: unacked index, unacked, leases
-- ARGV: tags (a JSON array), seconds from now (likewise), and for each tag a character, '1' if an
--   expired but untaken lease counts: three values, because a client packs each value by itself
-- Returns: for each lease a character, '1' (extended) or '0' (lost; nothing changed).
--
-- A tag that is no longer in the index was settled or restored, by whomever; payloads are not read.
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1000000
local tags, seconds = cjson.decode(ARGV[1]), cjson.decode(ARGV[2])
local scores = redis.call('ZMSCORE', KEYS[1], unpack(tags))
local answers, moves = {}, {}
for i, tag in ipairs(tags) do
  local score, late = scores[i], string.sub(ARGV[3], i, i) == '1'
  if score and (late or tonumber(score) > now) then
    moves[#moves + 1] = now + seconds[i]
    moves[#moves + 1] = tag
    answers[i] = '1'
  else
    answers[i] = '0'
  end
end
if #moves > 0 then
  redis.call('ZADD', KEYS[1], 'XX', unpack(moves))
  redis.call('ZADD', KEYS[3], 'XX', unpack(moves))
end
return table.concat(answers)
