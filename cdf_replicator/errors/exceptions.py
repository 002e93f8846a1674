"""Define the errors that the service raises, and the verdict on an error."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cdf_replicator.errors.conditions import SCHEMA_CHANGE, STALLED, TRIES

if TYPE_CHECKING:
    from cdf_replicator.errors.conditions import Action


@dataclass(frozen=True, slots=True)
class Verdict:
    """The reaction of a route to an error.

    Args:
        action: The reaction.
        reason: Label of the metrics and of the status.
        what: The error in one line.
        next_step: The operator's next step; never empty.
        of_sink: True if the sink is unavailable or refuses requests.
        tries: Failures in a row after which ``retry_then_halt`` halts.
    """

    action: Action
    reason: str
    what: str
    next_step: str
    of_sink: bool = False
    tries: int = TRIES


class HaltError(Exception):
    """An error that halts a route. ``reason`` is a metric label, ``next_step`` the operator's next step."""

    def __init__(self, reason: str, what: str, next_step: str) -> None:
        super().__init__(f"{what} {next_step}")
        self.verdict = Verdict("halt", reason, what, next_step)


class StalledError(Exception):
    """A query runs and makes no progress, although its source has newer versions."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.verdict = Verdict("restart", STALLED, what, "No action needed: the query is restarted once.")


class SchemaChangedError(Exception):
    """The table's columns changed between the plan of a stream and the start of its query."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.verdict = Verdict(
            "restart", SCHEMA_CHANGE, what, "No action needed: the stream restarts with the new schema."
        )


class DimensionError(Exception):
    """A joined table can't be read or has changed. The verdict is that of the underlying error."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict.what)
        self.verdict = verdict


class StateError(Exception):
    """The state path can't be used. The text has the cause and the next step."""


class LeaseLostError(Exception):
    """Another instance holds the lease of the state path now."""
