"""What runs inside the server: compare the guard and write, as one, for some hundred rows at a time.

For Redis 6.2 and 7. Guards are compared as text of equal length, since Lua's numbers are doubles. A guard of 20
characters, ending in ``d``, is a tombstone.
"""

from __future__ import annotations

from hashlib import sha1
from typing import Final

WRITE: Final = """
-- KEYS: value, guard, of each row
-- ARGV: type of the value, its time to live or 0, that of a tombstone, then for each row: guard, n, n arguments
-- returns the rows, counted from 0, that were stale, that changed nothing, and whose key holds something foreign
local kind, ttl, tombstone_ttl = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local stale, noop, foreign, deleted, plain = {}, {}, {}, {}, {}
local failed

local guards = {}
for row = 1, #KEYS / 2 do guards[row] = KEYS[2 * row] end
local held = redis.call('MGET', unpack(guards))

-- A value without a live guard may not be ours. Such keys hold nothing at all as a rule: one question for all of them.
local unguarded = {}
for row = 1, #guards do
  if not held[row] or #held[row] > 19 then unguarded[#unguarded + 1] = KEYS[2 * row - 1] end
end
local suspicious = #unguarded > 0 and redis.call('EXISTS', unpack(unguarded)) > 0

local function is_stale(row, guard, delete)
  local mine = held[row]
  if not mine then return false end
  local newest = string.sub(mine, 1, 19)
  if guard > newest or (guard == newest and not delete) then return false end
  -- A live guard whose value was evicted, or deleted by hand, counts as absent.
  return #mine > 19 or redis.call('EXISTS', KEYS[2 * row - 1]) == 1
end

local function is_foreign(row)
  if not suspicious or (held[row] and #held[row] == 19) then return false end
  local found = redis.call('TYPE', KEYS[2 * row - 1]).ok
  return found ~= 'none' and found ~= kind
end

-- Out of memory must not keep the deletes of this call from freeing some.
local function try(...)
  if failed then return end
  local reply = redis.pcall(...)
  if type(reply) == 'table' and reply.err then failed = reply end
end

local function set(key, text)
  if ttl > 0 then try('SET', key, text, 'EX', ttl)
  else
    plain[#plain + 1] = key
    plain[#plain + 1] = text
  end
end

-- The guard first: once a script has written, Redis no longer refuses it for want of memory.
local function set_hash(key, guard_key, guard, first, last)
  if ttl > 0 then try('SET', guard_key, guard, 'EX', ttl) else try('SET', guard_key, guard) end
  try('UNLINK', key)
  for from = first, last, 2000 do try('HSET', key, unpack(ARGV, from, math.min(from + 1999, last))) end
  if ttl > 0 then try('EXPIRE', key, ttl) end
end

local position = 4
for row = 1, #guards do
  local guard, first = ARGV[position], position + 2
  local last = position + 1 + tonumber(ARGV[position + 1])
  local delete = #guard > 19
  position = last + 1
  if is_stale(row, string.sub(guard, 1, 19), delete) then stale[#stale + 1] = row - 1
  elseif delete then deleted[#deleted + 1] = {row, guard}
  elseif is_foreign(row) then foreign[#foreign + 1] = row - 1
  elseif kind == 'hash' then set_hash(KEYS[2 * row - 1], guards[row], guard, first, last)
  else
    set(KEYS[2 * row - 1], ARGV[first])
    set(guards[row], guard)
  end
end
if #plain > 0 then try('MSET', unpack(plain)) end

for _, entry in ipairs(deleted) do
  local row, guard = entry[1], entry[2]
  if is_foreign(row) or redis.call('UNLINK', KEYS[2 * row - 1]) == 0 then noop[#noop + 1] = row - 1 end
  redis.call('SET', guards[row], guard, 'EX', tombstone_ttl)
end

return failed or {stale, noop, foreign}
"""

SWEEP: Final = """
-- KEYS: value, guard, of each row; ARGV: guard below which values go, guard of the tombstone, its time to live
-- returns how many values were removed
local removed = 0
for row = 1, #KEYS, 2 do
  local guard = redis.call('GET', KEYS[row + 1])
  if guard and #guard == 19 and guard < ARGV[1] then
    removed = removed + redis.call('UNLINK', KEYS[row])
    redis.call('SET', KEYS[row + 1], ARGV[2], 'EX', ARGV[3])
  end
end
return removed
"""

WRITE_SHA: Final = sha1(WRITE.encode(), usedforsecurity=False).hexdigest()
