-- List what is due, by page; forget refusals of more than an hour ago on the way.
--
-- KEYS: unacked index, unacked, leases, claims, refusals
-- ARGV: 'leases' or 'plain', the seconds after its score at which it is due, rank of the first, most
--       of them, the seconds that an arrival takes, and those after which a plain message is due
-- Returns: how many were looked at, fewer than asked for at the end; a flat list: of each its
-- tag, the seconds since it was due, and when it was delivered, in microseconds; whether plain
-- messages may be due, 1 or 0, so that nobody asks for them in vain; and 1 if there is any, due or
-- not, else 0.
--
-- A fencing token is the time of a claim; what only arrived has none, and the lease of an arrival.
--
-- Cost grows with the page, not with what is held; where nothing is held, it is one command.
if redis.call('EXISTS', KEYS[1], KEYS[3], KEYS[5]) == 0 then
  return {0, {}, 0, 0}
end
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1000000
local leased, latest = ARGV[1] == 'leases', now - tonumber(ARGV[2])
local first, most = tonumber(ARGV[3]), tonumber(ARGV[4])

if leased then
  local old = redis.call('ZRANGEBYSCORE', KEYS[5], '-inf', now - 3600, 'LIMIT', 0, most)
  if #old > 0 then
    redis.pcall('ZREM', KEYS[5], unpack(old))
  end
end

local page = redis.call('ZRANGE', KEYS[leased and 3 or 1], first, first + most - 1, 'WITHSCORES')
local tags, due, seen = {}, {}, 0
for i = 1, #page, 2 do
  if tonumber(page[i + 1]) > latest then
    break
  end
  seen = seen + 1
  tags[seen] = page[i]
end
local records = seen > 0 and redis.call('HMGET', KEYS[4], unpack(tags)) or {}
for i = 1, seen do
  if leased or not records[i] then
    due[#due + 1] = tags[i]
    local score = tonumber(page[2 * i])
    due[#due + 1] = string.format('%.3f', latest - score)
    due[#due + 1] = string.match(records[i] or '', '"token": (%d+)')
      or string.format('%.0f', (score - tonumber(ARGV[5])) * 1000000)
  end
end
local oldest = leased and redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')[2]
return {seen, due, oldest and tonumber(oldest) <= now - tonumber(ARGV[6]) and 1 or 0,
  #page > 0 and 1 or 0}
