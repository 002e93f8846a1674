"""Define the results of a comparison and of ``verify``."""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 - a command parses the answer of a service by these types
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Difference:
    """An entry that differs, or one column of it.

    Args:
        kind: One of ``DIFFERENCES``.
        identity: The entry's identity in the target.
        version: The commit version of the entry's guard; None without a guard.
        column: The column that differs; None if the whole entry does.
        table: The value in the source table, as text.
        target: The value in the target, as text.
    """

    kind: str
    identity: str
    version: int | None
    column: str | None = None
    table: str | None = None
    target: str | None = None


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result of a comparison.

    Args:
        rows: Number of compared rows of the source table.
        entries: Number of compared entries of the target.
        kinds: Number of entries by kind of difference.
        columns: Number of different entries by column.
        differences: The first differences, in the order of identities.
        identities: The identities of entries that differ, in their order, at most ``MOST_IDENTITIES``.
    """

    rows: int
    entries: int
    kinds: Mapping[str, int] = field(default_factory=dict)
    columns: Mapping[str, int] = field(default_factory=dict)
    differences: tuple[Difference, ...] = ()
    identities: tuple[str, ...] = ()

    @property
    def equal(self) -> bool:
        return not any(self.kinds.values())

    @property
    def unequal(self) -> int:
        """Return the number of entries that differ."""
        return sum(self.kinds.values())


@dataclass(frozen=True, slots=True)
class Verification:
    """The result of ``verify``.

    Args:
        route: Name of the route.
        target: The target as text.
        version: V, the compared version of the source table.
        newest: W, the version up to which changed keys were left out.
        changed: Number of keys that changed in (V, W].
        dead_letters: Number of keys with an open dead letter, which the target must not hold.
        left_out: Columns that were not compared.
        seconds: Duration.
        comparison: The result of the comparison.
        repairable: Whether a repair can write the entries again.
        first_version: The first compared version of a target that keeps every change; None for other targets.
        snapshot_version: The version of the snapshot that was compared with such a target; None without one.
    """

    route: str
    target: str
    version: int
    newest: int
    changed: int
    dead_letters: int
    left_out: tuple[str, ...]
    seconds: float
    comparison: Comparison
    repairable: bool = False
    first_version: int | None = None
    snapshot_version: int | None = None
