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

HELD: Final = """
-- ARGV: owner and route, fence, then generation, batch and version of the watermark that the claim must have reached;
-- generation and batch are empty if only the version is known, and all three are empty without a watermark
local function refusal(key)
  local claim = redis.call('HMGET', key, 'owner', 'fence', 'mark')
  if not claim[1] then return redis.error_reply('CDFGONE') end
  if claim[1] ~= ARGV[1] or tonumber(claim[2] or 0) > tonumber(ARGV[2]) then return redis.error_reply('CDFFENCED') end
  if ARGV[5] == '' then return end
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

-- KEYS[1]: the route's claim
local refused = refusal(KEYS[1])
if refused then return refused end
"""

MARK: Final = (
    HELD
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

_ROWS: Final = """
-- ARGV further: type of the values, their time to live in seconds or 0, that of tombstones
-- values, guards: the keys of each row. Its arguments, from position on, are its guard and, unless the guard is a tombstone, the
-- text of the value, or for a hash a number n and n fields and values
-- stale, noop, foreign: rows, counted from 0: stale rows, rows that changed nothing, rows whose key holds another type
local call, sub, kind, ttl, tombstone_ttl = redis.call, string.sub, ARGV[6], tonumber(ARGV[7]), ARGV[8]
local values, guards, held, position = {}, {}, {}, 9
local stale, noop, foreign, deleted, plain, suspicious, failed = {}, {}, {}, {}, {}

-- Read the guards of rows of one slot. A value without a live guard may come from another writer. These keys are usually absent:
-- one EXISTS checks all of them. Its answer holds for these rows only.
local function read(first, last)
  local found, unguarded = call('MGET', unpack(guards, first, last)), {}
  for row = first, last do
    local guard = found[row - first + 1]
    held[row] = guard and #guard > 18 and guard
    if not held[row] or #guard > 19 then unguarded[#unguarded + 1] = values[row] end
  end
  suspicious = #unguarded > 0 and call('EXISTS', unpack(unguarded)) > 0
end

local function is_stale(row, guard)
  local mine, delete = held[row], #guard > 19
  if not mine then return false end
  local tombstone = #mine > 19
  local newest = tombstone and sub(mine, 1, 19) or mine
  local given = delete and sub(guard, 1, 19) or guard
  if given > newest or (given == newest and not delete) then return false end
  -- A live guard counts as absent if Redis evicted its value or an operator deleted it.
  return tombstone or call('EXISTS', values[row]) == 1
end

local function is_foreign(row)
  if not suspicious or (held[row] and #held[row] == 19) then return false end
  local found = call('TYPE', values[row]).ok
  return found ~= 'none' and found ~= kind
end

-- If Redis is out of memory, the deletes of this call still have to run, since they free memory.
local function try(...)
  if failed then return end
  local reply = redis.pcall(...)
  if type(reply) == 'table' and reply.err then failed = reply end
  return reply
end

local function set_text(row, guard, text)
  if ttl > 0 then
    try('SET', guards[row], guard, 'EX', ttl)
    try('SET', values[row], text, 'EX', ttl)
  else
    local size = #plain
    plain[size + 1], plain[size + 2], plain[size + 3], plain[size + 4] = values[row], text, guards[row], guard
  end
end

local function flush()
  if #plain > 0 then try('MSET', unpack(plain)) end
  plain = {}
end

-- The guard comes first: after the first write of a script, Redis no longer refuses its writes for lack of memory. A row of nulls
-- alone has no hash, so that its guard is a tombstone.
local function set_hash(row, guard, first, last)
  local key = values[row]
  if last < first then try('SET', guards[row], guard .. 'd', 'EX', tombstone_ttl)
  elseif ttl > 0 then try('SET', guards[row], guard, 'EX', ttl) else try('SET', guards[row], guard) end
  try('UNLINK', key)
  for from = first, last, 2000 do try('HSET', key, unpack(ARGV, from, math.min(from + 1999, last))) end
  if ttl > 0 then try('EXPIRE', key, ttl) end
end

-- Return the guard of the next row, and the positions of its value or of its fields and values.
local function take()
  local guard, first, last = ARGV[position], position + 1, position
  if #guard < 20 and kind == 'hash' then
    first = position + 2
    last = position + 1 + tonumber(ARGV[position + 1])
  elseif #guard < 20 then
    last = first
  end
  position = last + 1
  return guard, first, last
end

local function write(row, guard, first, last)
  if is_stale(row, guard) then stale[#stale + 1] = row - 1
  elseif #guard > 19 then deleted[#deleted + 1] = {row, guard, is_foreign(row)}
  elseif is_foreign(row) then foreign[#foreign + 1] = row - 1
  elseif kind == 'hash' then set_hash(row, guard, first, last)
  else set_text(row, guard, ARGV[first]) end
end

local function remove(row, guard, theirs)
  if theirs or call('UNLINK', values[row]) == 0 then noop[#noop + 1] = row - 1 end
  call('SET', guards[row], guard, 'EX', tombstone_ttl)
end
"""

WRITE: Final = (
    HELD
    + _ROWS
    + """
-- KEYS further: for each row the keys of its value and its guard
for row = 1, (#KEYS - 1) / 2 do values[row], guards[row] = KEYS[2 * row], KEYS[2 * row + 1] end
read(1, #guards)
for row = 1, #guards do write(row, take()) end
flush()
for _, entry in ipairs(deleted) do remove(unpack(entry)) end
return failed or {stale, noop, foreign}
"""
)

WRITE_SLOTS: Final = (
    HELD
    + _ROWS
    + """
-- Writes rows of several slots of one node of a cluster. KEYS[1] is the claim of the first row, which finds the node.
-- ARGV further: the number of rows; for each the claim of its slot; for each the keys of its value and its guard
-- Returns a fourth list: rows of slots that the node does not hold, or not completely
local count, elsewhere, claimed, absent = tonumber(ARGV[9]), {}, KEYS[1], true
for row = 1, count do values[row], guards[row] = ARGV[8 + count + 2 * row], ARGV[9 + count + 2 * row] end
position = 10 + 3 * count

-- A newer holder writes after it has claimed every slot: the first claim, whose fence was compared, proves that it has not yet.
local function is_refused(row)
  local claim = ARGV[9 + row]
  if claim == claimed then return false end
  if call('HGET', claim, 'owner') ~= ARGV[1] then
    failed = failed or refusal(claim)
    return true
  end
  claimed = claim
  return false
end

-- Most rows of a load are new: one command finds that, and writes.
local function is_inserted(row, guard, first)
  if not absent or #guard > 19 or kind == 'hash' or ttl > 0 then return false end
  absent = try('MSETNX', values[row], ARGV[first], guards[row], guard) == 1
  return absent or failed
end

local function write_alone(row, guard, first, last)
  if is_refused(row) or is_inserted(row, guard, first) then return end
  read(row, row)
  absent = not held[row]
  write(row, guard, first, last)
  flush()
end

local function attempt(action, row, ...)
  local before = failed
  local done, raised = pcall(action, row, ...)
  local reason = not done and raised or (failed ~= before and failed)
  if not reason then return end
  local text = type(reason) == 'table' and reason.err or reason
  if string.find(text, 'non local key', 1, true) then
    failed = before
    elsewhere[#elsewhere + 1] = row - 1
  else
    failed = before or {err = text}
  end
end

for row = 1, count do attempt(write_alone, row, take()) end
for _, entry in ipairs(deleted) do attempt(remove, unpack(entry)) end
return failed or {stale, noop, foreign, elsewhere}
"""
)


def sha_of(code: str) -> str:
    """Return the name by which a server knows a script that it has loaded."""
    return sha1(code.encode(), usedforsecurity=False).hexdigest()


WRITE_SHA: Final = sha_of(WRITE)
WRITE_SLOTS_SHA: Final = sha_of(WRITE_SLOTS)
CLAIM_SHA: Final = sha_of(CLAIM)
MARK_SHA: Final = sha_of(MARK)


def is_guard(text: bytes) -> bool:
    """Return whether the text is a guard as the scripts compare it, without the mark of a tombstone."""
    return len(text) == GUARD_DIGITS and text.isdigit()
