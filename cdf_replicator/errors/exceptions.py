"""The errors that the service raises itself, and the verdict that says what is done about an error."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cdf_replicator.errors.conditions import SCHEMA_CHANGE, STALLED, TRIES

if TYPE_CHECKING:
    from cdf_replicator.errors.conditions import Action


@dataclass(frozen=True, slots=True)
class Verdict:
    """``reason``: a metric label. ``what``: the error in one line. ``next_step``: for the operator, never empty.

    ``of_sink``: it is the sink that is away or refuses us. ``tries``: failures in a row at which to halt.
    """

    action: Action
    reason: str
    what: str
    next_step: str
    of_sink: bool = False
    tries: int = TRIES


class HaltError(Exception):
    """The service itself stops a route: ``reason`` is a metric label, ``next_step`` what to do."""

    def __init__(self, reason: str, what: str, next_step: str) -> None:
        super().__init__(f"{what} {next_step}")
        self.verdict = Verdict("halt", reason, what, next_step)


class StalledError(Exception):
    """A query is alive and does not move, though its source is ahead."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.verdict = Verdict("restart", STALLED, what, "Nothing: the query is begun anew, once.")


class SchemaChangedError(Exception):
    """The table's columns changed between the plan of a stream and the start of its query."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.verdict = Verdict("restart", SCHEMA_CHANGE, what, "Nothing: the stream starts again with the new schema.")


class DimensionError(Exception):
    """A table that a route joins can't be read, or has changed: what the table of conditions says of it."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict.what)
        self.verdict = verdict


class StateError(Exception):
    """The state path can't be used; the text says why and what to do."""


class LeaseLostError(Exception):
    """Another instance writes to the state path now."""
