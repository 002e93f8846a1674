"""Acts on the service: run commands, lose files, restore targets from a copy, replace tables.

Each act returns its observations that contradict the documented behaviour. A route may halt for a documented reason and
continue after the documented command: this is no difference.
"""

from __future__ import annotations

import itertools
import shutil
import threading
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from cdf_replicator.state.command_queue import Command
from tests.oracle import dimension
from tests.oracle.moments import Interrupted, LostWrites
from tests.oracle.operations import insert, update
from tests.support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from cdf_replicator.errors.exceptions import ErrorDecision
    from cdf_replicator.runtime.route_runner import RouteRunner
    from tests.oracle.history import Act
    from tests.oracle.service import Replicator

LOST = ("target_gone", "target_restored", "target_claimed")
REPLACED = ("table_replaced", "history_lost")
PAIRS = (("replay", "replay"), ("replay", "resync"), ("resync", "replay"), ("replay", "discard"), ("resync", "resync"))
LIVE_VERSIONS = 8
"""Highest version at which a table is recreated under a live service: the new table has to get past it."""
NOTICED_SECONDS = 60


def halts(decisions: dict[str, ErrorDecision]) -> list[str]:
    return [f"route {name} halted: {decision.reason}: {decision.message}" for name, decision in decisions.items()]


def deliver(service: Replicator, act: Act) -> list[str]:
    return halts(service.deliver())


def _before(service: Replicator, act: Act) -> list[str]:
    """A fault comes after a delivery, in the middle of one, or before any."""
    moment = (None, Interrupted(1 + act.a % 3), "undelivered")[act.b % 3]
    if moment == "undelivered":
        return []
    return halts(service.deliver(moments=moment))


def lose_commit(service: Replicator, act: Act) -> list[str]:
    """Spark's word that the newest micro-batch was committed is not there, as after a kill before it."""
    if not _is_readable(service):
        return halts(service.deliver())
    found = _before(service, act)
    for checkpoint in service.checkpoints():
        if file := _newest(checkpoint / "commits"):
            file.unlink()
            file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
    service.caught_up = -1
    return found


def lose_checkpoint(service: Replicator, act: Act) -> list[str]:
    """A checkpoint is gone, or a file of it is cut off."""
    readable = _is_readable(service)
    found = _before(service, act) if readable else halts(service.deliver())
    for checkpoint in service.checkpoints():
        file = _newest(checkpoint / ("offsets", "commits", "gone")[act.a % 3])
        if file:
            file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
            file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
        elif act.a % 3 == 2:
            shutil.rmtree(checkpoint, ignore_errors=True)
    return found + halts(service.repaired(() if readable else ("history_lost", "start_out_of_range")))


def _is_readable(service: Replicator) -> bool:
    """Return whether every change since the routes' snapshots can be delivered again; VACUUM removes some."""
    return service.table.replayable_from <= min(service.pinned.values(), default=-1) + 1


def _newest(folder: Path) -> Path | None:
    return max(folder.glob("[0-9]*"), key=lambda file: int(file.name), default=None)


def lose_writes(service: Replicator, act: Act) -> list[str]:
    """Targets are brought back from copies: of one moment of a delivery, at a later one."""
    if not _is_readable(service):
        return halts(service.deliver())
    epochs = len(service.epochs.get(service.audit, {})) or 1
    moments = LostWrites(service.targets, 1 + act.a % 6, 2 + act.a % 6 + act.b % 4)
    decisions = service.deliver(moments=moments)
    moments.end()
    found = halts(service.repaired(LOST, decisions)) or halts(service.repaired(LOST))
    if len(service.epochs[service.audit]) > epochs:
        service.audited_from = service.table.version
    return found


def replay(service: Replicator, act: Act) -> list[str]:
    found = _before(service, act)
    first = service.table.replayable_from
    version = first + act.a % (service.table.version - first + 1)
    commands = {name: [Command("replay", name, version)] for name in service.routes}
    found += halts(service.deliver(commands))
    if service.answered(commands[service.audit][0]) != "failed":
        service.replayed.append(version)
    return found


def resync(service: Replicator, act: Act) -> list[str]:
    found = halts(service.catch_up())
    return found + halts(service.deliver({name: [Command("resync", name)] for name in service.routes}))


def two_commands(service: Replicator, act: Act) -> list[str]:
    """Submit two commands at once; each gets a result."""
    found = halts(service.catch_up())
    table = service.table
    first = max(table.replayable_from, *(pinned + 1 for pinned in service.pinned.values()))
    kinds = PAIRS[act.a % len(PAIRS)] if first <= table.version else ("resync", "resync")
    version = min(first + act.b % 3, table.version)
    commands = {
        name: [Command(kind, name, version if kind == "replay" else None) for kind in kinds] for name in service.routes
    }
    found += halts(service.deliver(commands))
    return found + [
        f"route {name}: the {request.kind} of {kinds} was answered {answer}"
        for name, both in commands.items()
        for request in both
        if (answer := service.answered(request)) not in ("done", "failed")
    ]


def recreate_table(service: Replicator, act: Act) -> list[str]:
    """Replace the source table by another table, between two runs or under a live service."""
    found = halts(service.catch_up())
    table, reached = service.table, service.table.version
    if act.b % 2 and reached <= LIVE_VERSIONS:
        with _live(service) as runners:
            table.recreate()
            for number in itertools.count():
                if table.version > reached + 1:
                    break
                # An insert finds no absent key at the end, and an update no present key at the beginning.
                (update if number % 2 else insert)(table, replace(act, a=act.a + number // 2))
                table.look()
            found += _unnoticed(runners)
    else:
        table.recreate()
        insert(table, act)
        table.look()
    decisions = service.deliver()
    service.forget()
    return found + halts(service.repaired(REPLACED, decisions))


@contextmanager
def _live(service: Replicator) -> Iterator[dict[str, RouteRunner]]:
    stop = threading.Event()
    runners, board = service.runners(stop, once=False)
    try:
        for runner in runners.values():
            runner.start()
        until(lambda: all(route.state == "running" for route in board.snapshot().routes), within=NOTICED_SECONDS)
        yield runners
    finally:
        stop.set()
        for runner in runners.values():
            runner.wake()
        for runner in runners.values():
            runner.join(NOTICED_SECONDS)


def _unnoticed(runners: dict[str, RouteRunner]) -> list[str]:
    with suppress(AssertionError):
        until(lambda: all(runner.failure for runner in runners.values()), within=NOTICED_SECONDS)
    return [
        f"route {name} follows a table that was recreated under its path: {runner.failure}"
        for name, runner in runners.items()
        if not (runner.failure and runner.failure.reason in REPLACED)
    ]


def recreate_dimension(service: Replicator, act: Act) -> list[str]:
    """Recreate the joined table at its version. A joined table with a row twice halts the routes."""
    found = halts(service.catch_up())
    table = service.table
    if table.shape.twins:
        return found
    doubled = bool(act.b % 2)
    dimension.recreate(table.spark, service.dimension, table.regions, doubled=doubled)
    insert(table, act)
    table.look()
    decisions = service.deliver()
    if doubled:
        decisions = {name: decision for name, decision in decisions.items() if decision.reason != "bad_dimension"}
        dimension.recreate(table.spark, service.dimension, table.regions, doubled=False)
    return found + halts(decisions)


ACTS: dict[str, Callable[[Replicator, Act], list[str]]] = {
    function.__name__: function
    for function in (
        deliver,
        lose_commit,
        lose_checkpoint,
        lose_writes,
        replay,
        resync,
        two_commands,
        recreate_table,
        recreate_dimension,
    )
}
