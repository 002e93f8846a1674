"""Values that the service gives to a sink: the change frame, its guard, the route and the micro-batch.

Every sink receives changes as a **change frame** with one row per change:

    key               string     key text; null if a key column is null (an upsert sink receives no such row)
    guard             bigint     the number that a sink compares, see ``guard_of``
    change_type       string     snapshot | insert | update_preimage | update_postimage | delete
    commit_version    bigint     Delta version of the change
    commit_timestamp  timestamp  time of that commit
    row               struct     the route's columns, renamed and projected

``snapshot`` marks the rows of a bootstrap. For an upsert sink, ``update_preimage`` and ``delete`` both delete the key at
this guard.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic import BaseModel
    from pyspark.sql import Column

KEY: Final = "key"
GUARD: Final = "guard"
CHANGE_TYPE: Final = "change_type"
COMMIT_VERSION: Final = "commit_version"
COMMIT_TIMESTAMP: Final = "commit_timestamp"
ROW: Final = "row"
DUPLICATE_GUARD: Final = "doubled"
"""Internal column between the reduction and the workers, which removes it: the guard at which a commit left several rows
of the key; null for every other key."""
NULL_KEY: Final = "null_key"
DUPLICATE_KEY: Final = "duplicate_key"
KEY_CODES: Final = (NULL_KEY, DUPLICATE_KEY)
"""Codes of rows that the service never sends to an upsert sink: no key, or several rows of a key in one commit."""

SNAPSHOT: Final = "snapshot"
"""Change type of the rows of a bootstrap."""
CHANGE_TYPES: Final = (SNAPSHOT, "insert", "update_preimage", "update_postimage", "delete")
DELETES: Final = ("update_preimage", "delete")
FEED_COLUMNS: Final = ("_change_type", "_commit_version", "_commit_timestamp")
"""The columns that Delta adds to the table's own in a change feed."""

EPOCH_STEP: Final = 2**44
GENERATION_STEP: Final = 2**32
MICROSECONDS: Final = 1_000_000
"""Microseconds of a second."""


def guard_of(epoch: int, commit_version: int, *, upsert: bool) -> int:
    """Return ``epoch * 2^44 + 2 * commit_version + upsert``, in 63 bits. At equal version an upsert beats a delete."""
    return epoch * EPOCH_STEP + 2 * commit_version + (1 if upsert else 0)


def commit_version_of(guard: int) -> int:
    return guard % EPOCH_STEP // 2


def is_delete(change_type: str = CHANGE_TYPE) -> Column:
    """Return a condition: the change deletes its key. ``change_type`` names the column."""
    from pyspark.sql import functions as F  # noqa: N812

    return F.expr(is_delete_sql(change_type))


def is_delete_sql(change_type: str = CHANGE_TYPE) -> str:
    """Return the condition of ``is_delete`` in SQL. PySpark sends a text to the JVM at once, and a column in many requests."""
    return f"{change_type} IN ({', '.join(map(repr, DELETES))})"


def counts() -> list[Column]:
    """Return the aggregates of a change frame: rows by change type, and version and time of the first and last commit."""
    from pyspark.sql import functions as F  # noqa: N812

    by_type = {kind: f"count_if({CHANGE_TYPE} = '{kind}')" for kind in CHANGE_TYPES}
    at = f"unix_micros({COMMIT_TIMESTAMP})"
    versions = {"first": f"min({COMMIT_VERSION})", "last": f"max({COMMIT_VERSION})"}
    counted = by_type | versions | {"oldest": f"min({at})", "newest": f"max({at})"}
    return [F.expr(f"{aggregate} AS `{name}`") for name, aggregate in counted.items()]


def commit_times(counted: Mapping[str, Any]) -> tuple[float, float] | None:
    """Return the times of the first and the last commit in epoch seconds from ``counts``; None if no row has a time."""
    if counted["oldest"] is None:
        return None
    return counted["oldest"] / MICROSECONDS, counted["newest"] / MICROSECONDS


@dataclass(frozen=True, slots=True)
class Watermark:
    """Progress of a target: it holds every micro-batch of a generation up to ``number`` and every commit up to ``version``.

    A watermark grows with every micro-batch. Several micro-batches of one commit have the same ``version``.
    ``generation`` is -1 in a watermark of an older release, which holds a version and no batch.
    """

    generation: int
    number: int
    version: int

    @classmethod
    def parse(cls, text: str) -> Watermark:
        """Parse the text of ``str(watermark)``, or a bare version."""
        *batch, version = (int(part) for part in text.split(":"))
        generation, number = batch or (-1, 0)
        return cls(generation, number, version)

    def __str__(self) -> str:
        return str(self.version) if self.generation < 0 else f"{self.generation}:{self.number}:{self.version}"

    @property
    def txn_version(self) -> int:
        """Return ``Batch.txn_version`` of the last batch; -1 if that is unknown."""
        return -1 if self.generation < 0 else self.generation * GENERATION_STEP + self.number

    def reaches(self, known: Watermark) -> bool:
        """Return whether a target with this watermark holds everything that it held at ``known``."""
        if self.generation < 0 or known.generation < 0:
            return self.version >= known.version
        return self.txn_version >= known.txn_version


@dataclass(frozen=True, slots=True)
class RouteSpec:
    """Properties of a route that its sink may use.

    Args:
        name: Slug of the route.
        table: Slug of the source table.
        keys: Key columns of the source table; empty only for append sinks.
        options: An instance of the sink's own ``Options``.
        owner: Identity of the state path that writes.
        epoch: Identity of the target's content. A resync or a recreated source table starts the next epoch.
        source: The source table's identifier in SQL.
        filter: The route's condition on source rows, if it has one.
        derived_columns: Columns of the row that are renamed, computed or joined.
        fence: Number of the lease. A sink with ``fencing`` refuses a writer with a lower number.
        watermark: The last watermark that the state path recorded for the target; None if it recorded none.
        table_id: Delta's id of the source table; empty if the route has no state.
        first_generation: The generation in which the epoch began; 0 if that is unknown.
        snapshot_version: The source version of the snapshot with which the epoch began; None if that is unknown.
    """

    name: str
    table: str
    keys: tuple[str, ...]
    options: BaseModel
    owner: str
    epoch: int
    source: str = ""
    filter: str | None = None
    derived_columns: tuple[str, ...] = ()
    fence: int = 0
    watermark: Watermark | None = None
    table_id: str = ""
    first_generation: int = 0
    snapshot_version: int | None = None


@dataclass(frozen=True, slots=True)
class Claim:
    """Record in a target: which state path fills it, and up to which watermark.

    Args:
        owner: Identity of the state path.
        epoch: Identity of the target's content.
        watermark: The last watermark; None if the target has none.
        restored: Whether the target was restored from a copy: it was replaced, or its watermark is below the route's.
        txn_version: The highest batch that the target recorded for this owner and route and will skip; -1 if none.
        route: Name of the route that fills the target; empty if the sink does not record it. Then only owners are compared.
    """

    owner: str
    epoch: int
    watermark: Watermark | None = None
    restored: bool = False
    txn_version: int = -1
    route: str = ""

    def is_of(self, route: RouteSpec) -> bool:
        """Return whether this route, of this state path, recorded the claim."""
        return self.owner == route.owner and self.route in {"", route.name}

    def other(self, route: RouteSpec) -> str | None:
        """Name the other route or state path that holds the target; None if the route has the claim, or its epoch is older.

        A resync starts an epoch above the claim, and so takes the target over.
        """
        if self.is_of(route) or self.epoch < route.epoch:
            return None
        if self.route in {"", route.name}:
            return "another state path"
        return f"route {self.route}" + ("" if self.owner == route.owner else " of another state path")


@dataclass(frozen=True, slots=True)
class Batch:
    """Identity of one micro-batch: (route, generation, number). Bootstrap is number 0; Spark's batch b is number b + 1.

    Args:
        route: The route that delivers the batch.
        generation: The life of the route's checkpoint.
        number: Position of the batch in its generation.
        table_id: Delta's id of the source table.
        may_exist: Whether an earlier generation may already have delivered the rows to an append sink.
        request: Id of the operator's command and the source version whose rows it writes, if the batch is outside the
            generation's sequence.
    """

    route: RouteSpec
    generation: int
    number: int
    table_id: str
    may_exist: bool = False
    request: str = ""

    @property
    def is_bootstrap(self) -> bool:
        """Return whether the rows come from a snapshot: all are upserts, and an upsert sink receives each key once."""
        return self.number == 0 and not self.may_exist and not self.request

    @property
    def txn_version(self) -> int:
        """Return Delta's ``txnVersion``. It grows forever, so that a leftover writer of an older generation loses."""
        return self.generation * GENERATION_STEP + self.number


@dataclass(frozen=True, slots=True)
class Change:
    """A change for a ``RowSink``. ``row`` is the JSON form of the row: see ``connectors.rendering``."""

    key: str
    guard: int
    change_type: str
    row: dict[str, Any]

    @property
    def deleted(self) -> bool:
        return self.change_type in DELETES

    @property
    def commit_version(self) -> int:
        return commit_version_of(self.guard)
