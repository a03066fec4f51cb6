-- Move the expiry of many leases, each only if it is still the asker's.
--
-- KEYS: unacked index, unacked, leases
-- ARGV: for each lease its tag, the seconds from now, and '1' if an expired but untaken one counts
-- Returns: for each lease 1 (extended) or 0 (lost; nothing changed).
--
-- A tag that is no longer in the index was settled or restored, by whomever; payloads are not read.
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1000000
local tags = {}
for i = 1, #ARGV, 3 do
  tags[#tags + 1] = ARGV[i]
end
local scores = redis.call('ZMSCORE', KEYS[1], unpack(tags))
local answers, moves = {}, {}
for i, tag in ipairs(tags) do
  local score, late = scores[i], ARGV[3 * i] == '1'
  if score and (late or tonumber(score) > now) then
    moves[#moves + 1] = now + tonumber(ARGV[3 * i - 1])
    moves[#moves + 1] = tag
    answers[i] = 1
  else
    answers[i] = 0
  end
end
if #moves > 0 then
  redis.call('ZADD', KEYS[1], 'XX', unpack(moves))
  redis.call('ZADD', KEYS[3], 'XX', unpack(moves))
end
return answers
