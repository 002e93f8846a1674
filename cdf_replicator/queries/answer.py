"""Define the values of answers, and the lines in which the running service sends them.

A line is a JSON object: ``progress`` with the tasks that run, ``values``, or at the end ``error`` or ``end``.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import orjson

if TYPE_CHECKING:
    from pydantic import TypeAdapter

Severity: TypeAlias = Literal["error", "warning"]


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem that ``validate`` prints.

    Args:
        where: The route, table, sink or path with the problem.
        what: Description of the problem.
        next_step: The operator's next step; may be empty.
        severity: A warning does not prevent a start.
    """

    where: str
    what: str
    next_step: str
    severity: Severity = "error"

    def __str__(self) -> str:
        mark = "warning: " if self.severity == "warning" else ""
        return f"{mark}{self.where}: {self.what} {self.next_step}"


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """The changes of a table that a replay would deliver again.

    Args:
        table: Slug of the table.
        first: First version.
        last: Last version.
        kinds: Change types, in the order of the numbers.
        versions: The first versions with changes, each with its number of rows by change type.
        with_changes: Number of versions with changes.
        rows: Number of rows by change type, of all versions.
    """

    table: str
    first: int
    last: int
    kinds: tuple[str, ...]
    versions: tuple[tuple[int, ...], ...]
    with_changes: int
    rows: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ResyncPlan:
    """The effect that a resync would have.

    Args:
        route: Name of the route.
        table: Slug of the table.
        version: The version that would be loaded.
        rows: Number of its rows.
        target: The target as text; None for a sink that appends, which nothing is removed from.
        filtered: Whether a filter over joined columns selects the rows that would be written.
        entries: Number of the target's entries; None for an empty target of a sink that can't count them.
        removed: Number of entries that would be removed, at least.
        waiting_version: The version that a resync has loaded whose sweep waits for the operator; ``removed`` is then exact.
    """

    route: str
    table: str
    version: int
    rows: int
    target: str | None = None
    filtered: bool = False
    entries: int | None = None
    removed: int = 0
    waiting_version: int | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """The finished tasks of the stages that run now."""

    done: int
    tasks: int


@dataclass(frozen=True, slots=True)
class Values:
    """Some values of the answer, in their order."""

    values: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Failure:
    """The error that ended a query, and the operator's next step."""

    what: str
    next_step: str


@dataclass(frozen=True, slots=True)
class End:
    """The answer is complete. An answer without it was interrupted."""


Event: TypeAlias = "Progress | Values | Failure | End"


def encode(event: Event) -> bytes:
    """Return the line of an event."""
    match event:
        case Progress():
            line: dict[str, Any] = {"progress": asdict(event)}
        case Values():
            line = {"values": event.values}
        case Failure():
            line = {"error": asdict(event)}
        case End():
            line = {"end": True}
    return orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE)


def decode(line: bytes, values: TypeAdapter[Any]) -> Event:
    """Return the event of a line; raise ``ValueError`` if it is none.

    Args:
        line: The line.
        values: Parser of one value.
    """
    match orjson.loads(line):
        case {"progress": {"done": int(done), "tasks": int(tasks)}}:
            return Progress(done, tasks)
        case {"values": list(found)}:
            return Values(tuple(values.validate_python(value) for value in found))
        case {"error": {"what": str(what), "next_step": str(next_step)}}:
            return Failure(what, next_step)
        case {"end": True}:
            return End()
    raise ValueError(f"not a line of an answer: {line[:100]!r}")
