-- Acknowledge messages, each only if its claim is still the asker's, and free their exclusive keys.
--
-- KEYS: unacked index, unacked, leases, claims
-- ARGV: tags
-- Returns: for each tag 1 (gone for good) or 0 (lost; nothing changed).
local answers = {}
for i, tag in ipairs(ARGV) do
  answers[i] = complete(tag)
end
return answers
