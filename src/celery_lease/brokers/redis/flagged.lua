-- Shared by the scripts that return messages: set the flags that kombu sets on a redelivery.
--
-- A payload is not decoded as a whole: kombu writes headers and properties last, and only these are
-- read, for the priority, too. What is not in that form stays as it is.
local HEADERS = '"headers": {'

local function decoded(text)
  local ok, value = pcall(cjson.decode, text)
  return ok and type(value) == 'table' and value or nil
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

