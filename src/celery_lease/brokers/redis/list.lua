-- List the records of messages that are held, or of parked ones, by page; changes nothing.
--
-- KEYS: claims
-- ARGV: where to go on, '0' at first; how many to look at; 'held' or 'parked'; a text that is in the
--   records looked for, or nothing
-- Returns: where to go on, '0' at the end; and a flat list of tags and records. Of parked messages
-- only one of each key in the page, unless a text is looked for.
--
-- Who looks for leases does not receive what is parked, however much that is.
local PARKED, KEY, AFTER = '{"parked": ', '"exclusive": {"key": "', '", "limit": '
local page = redis.call('HSCAN', KEYS[1], ARGV[1], 'COUNT', ARGV[2])
local parked, wanted = ARGV[3] == 'parked', ARGV[4]
local found, seen = {}, {}

local function is_new(record)
  local _, last = string.find(record, KEY, 1, true)
  local stop = last and string.find(record, AFTER, last + 1, true)
  local key = stop and string.sub(record, last + 1, stop - 1)
  if not key or seen[key] then
    return false
  end
  seen[key] = true
  return true
end

local function is_wanted(record)
  if (string.sub(record, 1, #PARKED) == PARKED) ~= parked then
    return false
  elseif wanted ~= '' then
    return string.find(record, wanted, 1, true)
  end
  return not parked or is_new(record)
end

for i = 1, #page[2], 2 do
  if is_wanted(page[2][i + 1]) then
    found[#found + 1] = page[2][i]
    found[#found + 1] = page[2][i + 1]
  end
end
return {page[1], found}
