"""Count and delete the values of an earlier epoch or of another writer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from connectors.redis import script
from connectors.redis.view import as_bytes, key_pages, value_pages
from connectors.result import EntryCount

if TYPE_CHECKING:
    from collections.abc import Sequence

    import redis

    from connectors.redis.keys import KeyNames


def count(client: redis.Redis, names: KeyNames, below_guard: int, value_type: str) -> EntryCount:
    """Count values and orphans, and find the highest guard, tombstones included."""
    total, below, highest = 0, 0, 0
    inspect = client.register_script(script.COUNT)
    for keys in value_pages(client, names):
        there, orphans = inspect(keys=keys, args=(_digits(below_guard), value_type))
        total, below = total + there, below + orphans
    for guards in key_pages(client, names.guard_pattern):
        found = (as_bytes(guard)[: script.GUARD_DIGITS] for guard in client.mget(guards) if guard)
        highest = max(highest, *(int(guard) for guard in found if script.is_guard(guard)), 0)
    return EntryCount(total, below, highest)


def sweep(
    client: redis.Redis,
    names: KeyNames,
    below_guard: int,
    value_type: str,
    tombstone_seconds: int,
    expected_claim: Sequence[str],
) -> int:
    """Delete every value whose guard is below the given guard, and return their number.

    A deleted value leaves a tombstone with the guard just below. It loses to every change of the new epoch, and beats every
    change of an older epoch.
    """
    removed = 0
    tombstone = (f"{_digits(below_guard - 1)}d", str(tombstone_seconds))
    arguments = (*expected_claim, _digits(below_guard), value_type, *tombstone)
    delete = client.register_script(script.SWEEP)
    for keys in value_pages(client, names):
        removed += delete(keys=[names.claim, *keys], args=arguments)
    return removed


def _digits(guard: int) -> str:
    return f"{guard:0{script.GUARD_DIGITS}d}"
