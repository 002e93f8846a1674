"""Define the Lua scripts that compare guards and write within the server, atomically for several hundred rows.

They run on Redis 6.2 and 7. They compare guards as texts of equal length, since Lua's numbers are doubles. A guard of 20
characters that ends in ``d`` is a tombstone. A shorter text comes from another writer and counts as absent.
"""

from __future__ import annotations

from hashlib import sha1
from typing import Final

GUARD_DIGITS: Final = 19

CLAIM: Final = """
-- KEYS: the route's claim; ARGV: owner and route, epoch, fence. A watermark belongs to its epoch, so a new epoch deletes it.
local held = redis.call('HMGET', KEYS[1], 'owner', 'epoch', 'fence')
local same = held[1] == ARGV[1]
if same and tonumber(held[3] or 0) > tonumber(ARGV[3]) then return redis.error_reply('CDFFENCED') end
if held[1] and not same and tonumber(held[2] or 0) >= tonumber(ARGV[2]) then return redis.error_reply('CDFCLAIMED') end
if not same or held[2] ~= ARGV[2] then redis.call('HDEL', KEYS[1], 'mark') end
redis.call('HSET', KEYS[1], 'owner', ARGV[1], 'epoch', ARGV[2], 'fence', ARGV[3])
"""

_HELD: Final = """
-- KEYS[1]: the route's claim; ARGV: owner and route, fence, then generation, batch and version of the watermark that the claim
-- must have reached; generation and batch are empty if only the version is known, and all three are empty without a watermark
local claim = redis.call('HMGET', KEYS[1], 'owner', 'fence', 'mark')
if not claim[1] then return redis.error_reply('CDFGONE') end
if claim[1] ~= ARGV[1] or tonumber(claim[2] or 0) > tonumber(ARGV[2]) then return redis.error_reply('CDFFENCED') end
if ARGV[5] ~= '' then
  local mark = claim[3] or '-1'
  local generation, number = string.match(mark, '^(%d+):(%d+):')
  local older
  if generation and ARGV[3] ~= '' then
    generation, number = tonumber(generation), tonumber(number)
    local least = tonumber(ARGV[3])
    older = generation < least or (generation == least and number < tonumber(ARGV[4]))
  else
    older = tonumber(string.match(mark, '%-?%d+$')) < tonumber(ARGV[5])
  end
  if older then return redis.error_reply('CDFOLDER') end
end
"""

MARK: Final = (
    _HELD
    + """
-- ARGV further: the new watermark; run id, replication id and lowest offset of the server, empty if they are unknown
if ARGV[7] ~= '' then
  local function info(section, name) return string.match(redis.call('INFO', section), name .. ':(%w+)') end
  if info('server', 'run_id') ~= ARGV[7] or info('replication', 'master_replid') ~= ARGV[8]
    or tonumber(info('replication', 'master_repl_offset')) < tonumber(ARGV[9]) then
    return redis.error_reply('CDFOTHER')
  end
end
redis.call('HSET', KEYS[1], 'mark', ARGV[6])
"""
)

WRITE: Final = (
    _HELD
    + """
-- KEYS further: for each row the keys of its value and its guard
-- ARGV further: type of the values, their time to live in seconds or 0, that of tombstones; then for each row its guard and,
-- unless the guard is a tombstone, the text of the value, or for a hash a number n and n fields and values
-- Returns three lists of rows, counted from 0: stale rows, rows that changed nothing, rows whose key holds another type
local call, pcall, sub = redis.call, redis.pcall, string.sub
local kind, ttl, tombstone_ttl = ARGV[6], tonumber(ARGV[7]), ARGV[8]
local stale, noop, foreign, deleted, plain = {}, {}, {}, {}, {}
local failed

local guards = {}
for row = 1, (#KEYS - 1) / 2 do guards[row] = KEYS[2 * row + 1] end
local held = call('MGET', unpack(guards))
for row = 1, #guards do held[row] = held[row] and #held[row] > 18 and held[row] end

-- A value without a live guard may come from another writer. These keys are usually absent: one EXISTS checks all of them.
local unguarded = {}
for row = 1, #guards do
  if not held[row] or #held[row] > 19 then unguarded[#unguarded + 1] = KEYS[2 * row] end
end
local suspicious = #unguarded > 0 and call('EXISTS', unpack(unguarded)) > 0

local function is_stale(row, guard)
  local mine, delete = held[row], #guard > 19
  if not mine then return false end
  local tombstone = #mine > 19
  local newest = tombstone and sub(mine, 1, 19) or mine
  local given = delete and sub(guard, 1, 19) or guard
  if given > newest or (given == newest and not delete) then return false end
  -- A live guard counts as absent if Redis evicted its value or an operator deleted it.
  return tombstone or call('EXISTS', KEYS[2 * row]) == 1
end

local function is_foreign(row)
  if not suspicious or (held[row] and #held[row] == 19) then return false end
  local found = call('TYPE', KEYS[2 * row]).ok
  return found ~= 'none' and found ~= kind
end

-- If Redis is out of memory, the deletes of this call still have to run, since they free memory.
local function try(...)
  if failed then return end
  local reply = pcall(...)
  if type(reply) == 'table' and reply.err then failed = reply end
end

local function set_text(row, guard, text)
  if ttl > 0 then
    try('SET', guards[row], guard, 'EX', ttl)
    try('SET', KEYS[2 * row], text, 'EX', ttl)
  else
    local size = #plain
    plain[size + 1], plain[size + 2] = KEYS[2 * row], text
    plain[size + 3], plain[size + 4] = guards[row], guard
  end
end

-- The guard comes first: after the first write of a script, Redis no longer refuses its writes for lack of memory.
local function set_hash(row, guard, first, last)
  local key = KEYS[2 * row]
  if ttl > 0 then try('SET', guards[row], guard, 'EX', ttl) else try('SET', guards[row], guard) end
  try('UNLINK', key)
  for from = first, last, 2000 do try('HSET', key, unpack(ARGV, from, math.min(from + 1999, last))) end
  if ttl > 0 then try('EXPIRE', key, ttl) end
end

local position = 9
for row = 1, #guards do
  local guard = ARGV[position]
  local delete, first, last = #guard > 19, position + 1, position
  if not delete and kind == 'hash' then
    first = position + 2
    last = position + 1 + tonumber(ARGV[position + 1])
  elseif not delete then
    last = first
  end
  position = last + 1
  if is_stale(row, guard) then stale[#stale + 1] = row - 1
  elseif delete then deleted[#deleted + 1] = {row, guard}
  elseif is_foreign(row) then foreign[#foreign + 1] = row - 1
  elseif kind == 'hash' then set_hash(row, guard, first, last)
  else set_text(row, guard, ARGV[first]) end
end
if #plain > 0 then try('MSET', unpack(plain)) end

for _, entry in ipairs(deleted) do
  local row, guard = entry[1], entry[2]
  if is_foreign(row) or call('UNLINK', KEYS[2 * row]) == 0 then noop[#noop + 1] = row - 1 end
  call('SET', guards[row], guard, 'EX', tombstone_ttl)
end

return failed or {stale, noop, foreign}
"""
)

_ORPHANS: Final = """
-- A value is an orphan if its guard is lower than the given guard, or if it has no live guard and the type of the route's
-- values. A value without a live guard and of another type belongs to another user, and the sink never wrote it.
local call = redis.call
local function inspect(row, below, kind)
  local guard = call('MGET', KEYS[row + 1])[1]  -- also nil if another user has a list under that name
  if guard and #guard == 19 then return call('EXISTS', KEYS[row]) == 1, guard < below end
  local ours = call('TYPE', KEYS[row]).ok == kind
  return ours, ours
end
"""

COUNT: Final = (
    _ORPHANS
    + """
-- KEYS: for each row the keys of its value and its guard; ARGV: guard below which values are orphans, type of the values
-- Returns the number of values, and the number of orphans among them
local total, below = 0, 0
for row = 1, #KEYS, 2 do
  local there, orphan = inspect(row, ARGV[1], ARGV[2])
  if there then total = total + 1 end
  if there and orphan then below = below + 1 end
end
return {total, below}
"""
)

SWEEP: Final = (
    _HELD
    + _ORPHANS
    + """
-- KEYS further: for each row the keys of its value and its guard
-- ARGV further: guard below which values are orphans, type of the values, guard of the tombstones, their time to live
-- Returns the number of removed values
local removed = 0
for row = 2, #KEYS, 2 do
  local there, orphan = inspect(row, ARGV[6], ARGV[7])
  if there and orphan then
    removed = removed + call('UNLINK', KEYS[row])
    call('SET', KEYS[row + 1], ARGV[8], 'EX', ARGV[9])
  end
end
return removed
"""
)

READ_HASHES: Final = """
-- KEYS: for each row the keys of its value and its guard
-- Returns for each row its fields and values, or nil for a key of another type; then the guards
local hashes, guards = {}, {}
for row = 1, #KEYS, 2 do
  local held = redis.pcall('HGETALL', KEYS[row])
  hashes[#hashes + 1] = not held.err and held
  guards[#guards + 1] = KEYS[row + 1]
end
return {hashes, redis.call('MGET', unpack(guards))}
"""


def sha_of(code: str) -> str:
    """Return the name by which a server knows a script that it has loaded."""
    return sha1(code.encode(), usedforsecurity=False).hexdigest()


WRITE_SHA: Final = sha_of(WRITE)
CLAIM_SHA: Final = sha_of(CLAIM)
MARK_SHA: Final = sha_of(MARK)


def is_guard(text: bytes) -> bool:
    """Return whether the text is a guard as the scripts compare it, without the mark of a tombstone."""
    return len(text) == GUARD_DIGITS and text.isdigit()
