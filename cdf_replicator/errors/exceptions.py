"""Define the errors that the service raises, and the decision on an error."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cdf_replicator.errors.conditions import SCHEMA_CHANGE, STALLED, TRIES

if TYPE_CHECKING:
    from cdf_replicator.errors.conditions import Action


@dataclass(frozen=True, slots=True)
class ErrorDecision:
    """The reaction of a route to an error.

    Args:
        action: The reaction.
        reason: Label of the metrics and of the status.
        message: The error in one line.
        remedy: The operator's next step; never empty.
        from_sink: True if the sink is unavailable or refuses requests.
        max_failures: Failures in a row with the same reason after which ``retry_then_halt`` halts.
    """

    action: Action
    reason: str
    message: str
    remedy: str
    from_sink: bool = False
    max_failures: int = TRIES


class RouteHaltError(Exception):
    """An error that halts a route. ``reason`` is a metric label, ``remedy`` the operator's next step."""

    def __init__(self, reason: str, message: str, remedy: str) -> None:
        super().__init__(f"{message} {remedy}")
        self.decision = ErrorDecision("halt", reason, message, remedy)


class QueryStalledError(Exception):
    """A query runs and makes no progress, although its source has newer versions."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.decision = ErrorDecision("restart", STALLED, message, "No action needed: the query is restarted once.")


class SchemaChangedError(Exception):
    """The table's columns changed between the plan of a stream and the start of its query."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.decision = ErrorDecision(
            "restart", SCHEMA_CHANGE, message, "No action needed: the stream restarts with the new schema."
        )


class EnrichmentError(Exception):
    """A joined table can't be read or has changed. The decision is that of the underlying error."""

    def __init__(self, decision: ErrorDecision) -> None:
        super().__init__(decision.message)
        self.decision = decision


class StateError(Exception):
    """The state path can't be used. The text has the cause and the next step."""


class LeaseLostError(Exception):
    """Another instance holds the lease of the state path now."""


class ComparisonRefusedError(Exception):
    """A comparison of a target does not start now. The text has the reason, for an operator."""
