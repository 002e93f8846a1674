"""Count and delete the values of an earlier epoch or of another writer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from connectors.redis import script
from connectors.redis.view import as_bytes, key_pages, value_pages
from connectors.result import EntryCount

if TYPE_CHECKING:
    from collections.abc import Sequence

    from connectors.redis.client import Server
    from connectors.redis.cluster import Cluster
    from connectors.redis.keys import KeyNames


def count(server: Server | Cluster, names: KeyNames, below_guard: int, value_type: str) -> EntryCount:
    """Count values and orphans, and find the highest guard, tombstones included."""
    total, below, highest = 0, 0, 0
    for client in server.masters():
        inspect = client.register_script(script.COUNT)
        for keys in value_pages(client, names):
            with client.pipeline(transaction=False) as pipe:
                for _, part in server.split(names, keys):
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
    change of an older epoch.
    """
    removed = 0
    tombstone = (f"{_digits(below_guard - 1)}d", str(tombstone_seconds))
    arguments = (*server.held(expected_claim), _digits(below_guard), value_type, *tombstone)
    for client in server.masters():
        delete = client.register_script(script.SWEEP)
        for keys in value_pages(client, names):
            with client.pipeline(transaction=False) as pipe:
                for claim, part in server.split(names, keys):
                    delete(keys=[claim, *part], args=arguments, client=pipe)
                removed += sum(pipe.execute())
    return removed


def _digits(guard: int) -> str:
    return f"{guard:0{script.GUARD_DIGITS}d}"
