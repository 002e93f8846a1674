"""Count and delete the values of an earlier epoch or of another writer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from connectors.redis import script
from connectors.redis.keys import as_bytes, guard_of_value
from connectors.redis.view import key_pages, value_pages
from connectors.result import EntryCount

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import redis

    from connectors.redis.client import Server
    from connectors.redis.cluster import Cluster
    from connectors.redis.keys import KeyNames


_ORPHANS: Final = """
-- A value is an orphan if its guard is lower than the given guard, or if it has no live guard and the type of the route's
-- values. A value without a live guard and of another type belongs to another user, and the sink never wrote it.
local call = redis.call
local function inspect(row, below, kind)
  local guard = KEYS[row + 1] and call('MGET', KEYS[row + 1])[1]  -- also nil if another user has a list under that name
  if guard and #guard == 19 then return call('EXISTS', KEYS[row]) == 1, guard < below end
  local ours = call('TYPE', KEYS[row]).ok == kind
  return ours, ours
end
"""

COUNT: Final = (
    _ORPHANS
    + """
-- KEYS: for each row the keys of its value and its guard, or one value alone
-- ARGV: guard below which values are orphans, type of the values
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
    script.HELD
    + _ORPHANS
    + """
-- KEYS further: for each row the keys of its value and its guard, or one value alone
-- ARGV further: guard below which values are orphans, type of the values, guard of the tombstones, their time to live
-- Returns the number of removed values
local removed = 0
for row = 2, #KEYS, 2 do
  local there, orphan = inspect(row, ARGV[6], ARGV[7])
  if there and orphan then
    removed = removed + call('UNLINK', KEYS[row])
    if KEYS[row + 1] then call('SET', KEYS[row + 1], ARGV[8], 'EX', ARGV[9]) end
  end
end
return removed
"""
)


def count(server: Server | Cluster, names: KeyNames, below_guard: int, value_type: str) -> EntryCount:
    """Count values and orphans, and find the highest guard, tombstones included."""
    total, below, highest = 0, 0, 0
    for client in server.masters():
        inspect = client.register_script(COUNT)
        for keys in _pages(client, names):
            with client.pipeline(transaction=False) as pipe:
                for _, part in server.split_pairs(names, keys):
                    inspect(keys=part, args=(_digits(below_guard), value_type), client=pipe)
                for there, orphans in pipe.execute():
                    total, below = total + there, below + orphans
        for page in key_pages(client, names.guard_pattern):
            with client.pipeline(transaction=False) as pipe:
                for _, part in server.split(names, page):
                    pipe.mget(part)
                guards = (guard for reply in pipe.execute() for guard in reply if guard)
            found = (as_bytes(guard)[: script.GUARD_DIGITS] for guard in guards)
            highest = max(highest, *(int(guard) for guard in found if script.is_guard(guard)), 0)
    return EntryCount(total, below, highest)


def sweep(
    server: Server | Cluster,
    names: KeyNames,
    below_guard: int,
    value_type: str,
    tombstone_seconds: int,
    expected_claim: Sequence[str],
) -> int:
    """Delete every value whose guard is below the given guard, and return their number.

    A deleted value leaves a tombstone with the guard just below. It loses to every change of the new epoch, and beats every
    change of an older epoch. A value of another writer whose guard would have another slot of a cluster leaves none.
    """
    removed = 0
    tombstone = (f"{_digits(below_guard - 1)}d", str(tombstone_seconds))
    arguments = (*server.held(expected_claim), _digits(below_guard), value_type, *tombstone)
    for client in server.masters():
        delete = client.register_script(SWEEP)
        for keys in _pages(client, names):
            with client.pipeline(transaction=False) as pipe:
                for claim, part in server.split_pairs(names, keys):
                    delete(keys=[claim, *part], args=arguments, client=pipe)
                removed += sum(pipe.execute())
    return removed


def _pages(client: redis.Redis, names: KeyNames) -> Iterator[list[bytes]]:
    """Yield pages of the keys of values, each followed by the key of its guard.

    A value of a former template with the same prefix is found by its guard. A value under a longer prefix with a claim belongs
    to the route of that claim, which may be of another deployment. In a cluster each master has claims of every route.
    """
    yield from value_pages(client, names)
    if len(names.pieces) == 1:  # every key with the prefix matches the pattern of the values
        return
    claims = key_pages(client, names.claim_pattern)
    others = tuple({prefix for page in claims for prefix in names.longer_prefixes(page)})
    for page in key_pages(client, names.guard_pattern):
        values = [value for value in names.former_values(page) if not value.startswith(others)]
        if values:
            yield [key for value in values for key in (value, guard_of_value(value))]


def _digits(guard: int) -> str:
    return f"{guard:0{script.GUARD_DIGITS}d}"
