"""Describe an error condition of Spark or Delta, and name the reasons and next steps that several packages report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Action = Literal["restart", "wait", "retry_then_halt", "halt"]
"""restart: rebuild the stream now. wait: retry with back-off without end. retry_then_halt: retry a few times, then halt."""

TRIES: Final = 5
"""Default of ``ErrorCondition.tries``."""


@dataclass(frozen=True, slots=True)
class ErrorCondition:
    """A group of errors with the same cause.

    Args:
        patterns: Error conditions, or beginnings of their names. An error belongs to the row if its text holds any of them.
        action: The reaction of the route.
        reason: Label of the metrics and of the status.
        next_step: The operator's next step; ``{route}`` becomes the route's name.
        tries: Failures in a row with the same reason after which ``retry_then_halt`` halts.
    """

    patterns: tuple[str, ...]
    action: Action
    reason: str
    next_step: str
    tries: int = TRIES

    def matches(self, text: str) -> bool:
        return any(name in text for name in self.patterns)


RESYNC: Final = "Run: cdf-replicator resync {route}"
RESYNC_CLAUSE: Final = RESYNC[0].lower() + RESYNC[1:]
"""The same command as the end of a sentence."""
USE_RANGE_OR_RESYNC: Final = "Use a version of that range. To start from the current snapshot, " + RESYNC_CLAUSE
"""The next step after a replay of versions that are not available."""
RESYNC_RENAMED: Final = (
    RESYNC + " --yes (it deletes every entry with a former name, often a larger share than MAX_REMOVED_SHARE)"
)
"""The next step after a change of the names of entries alone: the load writes every entry under its new name."""
INTERRUPTED: Final = "interrupted"
"""Reason of an error that a stop causes in the middle of a micro-batch; not a failure."""

UNKNOWN_SPARK_ERROR: Final = "spark"
"""Reason of an error of Spark or Delta that fits no row."""

STALLED: Final = "stalled"
"""Reason of the restart of a query that made no progress."""

SCHEMA_CHANGE: Final = "schema_change"
"""Reason of errors after a change of the source table's columns."""
UNKNOWN_CHANGE: Final = "CDF_UNKNOWN_CHANGE_TYPE"
"""Condition that the service raises itself, since Delta does not check the change types in a change file."""

UNREADABLE: Final = frozenset({"history_lost", "change_feed_off", "read_failed", SCHEMA_CHANGE, "bad_expression"})
"""Reasons that may concern only the versions of a replay."""
