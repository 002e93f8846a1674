"""Define the base class of the Delta sinks: the table's path, its claim, and compaction outside the batch path."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, Final

from pydantic import Field, model_validator

from connectors import names
from connectors.change import Claim, Watermark
from connectors.delta.tables import commits, table, transactions
from connectors.delta.tables.session import session
from connectors.delta.tables.snapshot import Snapshot
from connectors.errors import PermanentError, claimed, fenced_off, lost
from connectors.names import quote_identifier
from connectors.protocols import Addressed, Maintained, Watermarked
from connectors.settings import SinkSettings
from connectors.sink import FrameSink

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql.types import StructType
    from typing_extensions import Self

    from connectors.change import RouteSpec

_CLAIM: Final = "cdf_replicator.claim"
_DEFINITION: Final = "cdf_replicator.definition"
_OPTIMIZED: Final = "cdf-replicator:optimize"
_HOUR: Final = 3600
LOOK_SECONDS: Final = 600
MOST_SMALL_FILES: Final = 50
"""The default of Delta's auto compaction (``spark.databricks.delta.autoCompact.minNumFiles``), which delays a micro-batch."""


class DeltaSettings(SinkSettings):
    """Settings of every Delta sink: the folder of its tables, and their compaction."""

    path: str = Field(min_length=1, description="Folder of the sink's Delta tables, one each: <PATH>/<table slug>.")
    optimize_hours: float | None = Field(
        None, gt=0, allow_inf_nan=False, description="Hours between two compactions of small files, beside the stream."
    )
    zorder_by: tuple[str, ...] = Field((), description="Cluster by these columns while compacting.")
    auto_compact: bool = Field(default=False, description="Compact when there are 50 small files, beside the stream.")

    @model_validator(mode="after")
    def _zorder_needs_optimize(self) -> Self:
        if self.zorder_by and self.optimize_hours is None and not self.auto_compact:
            raise ValueError("zorder_by needs optimize_hours or auto_compact: compaction clusters the rows")
        return self


class DeltaSink(FrameSink, Watermarked, Maintained, Addressed):
    """A sink with one Delta table per route, or per source table. ``what`` is the kind of table in messages."""

    settings: DeltaSettings
    what: ClassVar[str]
    _looked_at = 0.0
    _seen: int | None = None

    @property
    def endpoint(self) -> str:
        return self.settings.path

    def target(self, route: RouteSpec) -> str:
        return f"{self.settings.path.rstrip('/')}/{route.table}"

    def places(self, route: RouteSpec) -> frozenset[str]:
        return frozenset({f"delta {names.folder(self.target(route))}"})

    def check(self) -> None:
        """Check that Spark can write to the folder, by a file that is removed again."""
        table.check_access(self.settings.path, self.what)

    def read_claim(self, route: RouteSpec) -> Claim | None:
        """Read the table property that ``prepare`` set, and the last transaction of the route.

        A table that was restored from a copy of its files lacks the transaction of the last batch.
        """
        path = self.target(route)
        newest = Snapshot(path) if table.exists(path) else None
        held = None if newest is None else _claim_in(newest)
        if newest is None or held is None:
            return None
        app, self._seen = transactions.application(route, path), newest.version
        if not held.is_of(route):
            return held
        known, recorded = -1 if route.watermark is None else route.watermark.txn_version, newest.last_txn_version(app)
        back = commits.taken_back_since(path, app, known, self._seen)
        restored, reached = back is not None or recorded < known, None
        if restored and (back is None or back.operation in commits.COPIES):
            reached = self.complete(route, newest.version if back is None else back.version)
        mark = None if reached is None else Watermark(-1, 0, reached)
        return replace(held, watermark=mark, restored=restored, txn_version=recorded)

    def complete(self, route: RouteSpec, restored_at: int) -> int | None:  # noqa: ARG002
        """Return the source version up to which a restored table holds every commit; None if the table does not show it.

        Args:
            route: The route that fills the table.
            restored_at: The table's version that the RESTORE committed, or the newest version of a copy of the table's files.
        """
        return None

    def save_watermark(self, route: RouteSpec, watermark: Watermark) -> None:
        """Check that no other writer has removed the route's rows, and record a batch without rows.

        Each write records its batch itself. A table that lacks the last batch is therefore a copy.
        """
        path = self.target(route)
        app = transactions.application(route, path)
        if self.checked_snapshot(route).last_txn_version(app) < watermark.txn_version:
            transactions.record_txn(path, app, watermark.txn_version)
            self.checked_snapshot(route)  # a RESTORE may precede that commit, which would hide it

    def checked_snapshot(self, route: RouteSpec) -> Snapshot:
        """Return the newest snapshot; raise an error if a commit since the last check removed the route's rows.

        The check reads each commit once, but a micro-batch needs two checks. The check of the write finds a RESTORE before
        the sink's own transaction follows it. The check of the watermark finds a RESTORE between the check of the write and
        its commit, before Spark commits the micro-batch.

        Raises:
            RetryableError: A RESTORE, a TRUNCATE or an overwrite removed rows.
            PermanentError: Another route or another state path has taken the table over.
        """
        path = self.target(route)
        newest = Snapshot(path)
        claim = _claim_in(newest)
        if claim is not None and not claim.is_of(route):
            raise fenced_off(f"the Delta table {path}")
        if self._seen is not None:
            if newest.version < self._seen:
                raise lost(f"the Delta table {path} was replaced by another table")
            if (back := commits.taken_back(path, self._seen, newest.version)) is not None:
                raise lost(f"another writer has removed rows of the Delta table {path} ({back.operation})")
        self._seen = newest.version
        return newest

    def record_claim(self, route: RouteSpec, definition: str = "") -> None:
        """Record the route's claim as a table property, at the end of ``prepare``.

        Args:
            route: The route that fills the table.
            definition: Options that must not change within an epoch, as text; see ``redefined``.

        Raises:
            PermanentError: Another route has recorded its claim in the meantime.
        """
        _refuse_another(self.target(route), route)
        given = {_CLAIM: f"{route.owner}:{route.epoch}:{route.name}"}
        if definition:
            given[_DEFINITION] = definition
        table.set_properties(self.target(route), given)

    def redefined(self, route: RouteSpec, definition: str, options: str) -> bool:
        """Return whether the definition changed in a new epoch; raise ``PermanentError`` if it changed within an epoch."""
        path = self.target(route)
        held = Snapshot(path).properties.get(_DEFINITION, definition)
        if held == definition:
            return False
        claim = self.read_claim(route)
        if claim is not None and claim.epoch >= route.epoch:
            raise PermanentError(
                f"{options} of route {route.name} has changed, but the rows of {path} come from the old value.",
                f"Run: cdf-replicator resync {route.name}",
            )
        return True

    def check_columns(self, schema: StructType, route: RouteSpec, own: Iterable[str]) -> None:
        """Raise ``PermanentError`` if a column of the route has the name of a column that the sink adds."""
        if clashing := sorted({name.lower() for name in schema.fieldNames()} & set(own)):
            raise PermanentError(
                f"column {', '.join(clashing)} of route {route.name} has the name of {_an(self.what)} column.",
                f"Rename it: CDF_ROUTES__{route.name.upper()}__RENAME={clashing[0]}=source_{clashing[0].lstrip('_')}",
            )

    def check_sole(self, path: str, route: RouteSpec) -> None:
        """Raise ``PermanentError`` if another route claims an existing table, or if it holds rows without a claim."""
        if (
            not _refuse_another(path, route)
            and route.epoch == 1
            and not session().read.format("delta").load(path).isEmpty()
        ):
            raise PermanentError(
                f"the Delta table {path} holds rows, and no route has recorded that it fills it.",
                "Name another PATH for the sink, or move that table away.",
            )

    def check_table(self, path: str, own: Iterable[str]) -> None:
        """Raise ``PermanentError`` if an existing table lacks a column that the sink adds to its tables."""
        if missing := sorted(set(own) - set(table.schema_of(path).fieldNames())):
            raise PermanentError(
                f"the Delta table {path} is no {self.what} table: it lacks {', '.join(missing)}.",
                "Name another PATH for the sink, or move that table away.",
            )

    def next_maintenance_at(self, route: RouteSpec) -> float | None:
        """Return the time of the next compaction, or of the next count of small files, in epoch seconds."""
        times = []
        if self.settings.optimize_hours is not None:
            times.append(self._next_compaction(route, self.settings.optimize_hours))
        if self.settings.auto_compact:
            times.append(self._looked_at + LOOK_SECONDS)
        return min(times, default=None)

    def run_maintenance(self, route: RouteSpec) -> str:
        """Compact the table if it is due. The rows stay the same; the service retries a write that conflicts with it."""
        hours, now = self.settings.optimize_hours, time.time()
        if hours is not None and now >= self._next_compaction(route, hours):
            return self._compact(route)
        if self.settings.auto_compact and now >= self._looked_at + LOOK_SECONDS:
            self._looked_at = now
            if Snapshot(self.target(route)).small_files() >= MOST_SMALL_FILES:
                return self._compact(route)
        return ""

    def _next_compaction(self, route: RouteSpec, hours: float) -> float:
        return transactions.next_run_at(self.target(route), _OPTIMIZED, hours * _HOUR)

    def _compact(self, route: RouteSpec) -> str:
        started, path = int(time.time()), self.target(route)
        by = ", ".join(map(quote_identifier, self.settings.zorder_by))
        result = session().sql(f"OPTIMIZE {table.identifier(path)}" + (f" ZORDER BY ({by})" if by else ""))
        removed, added = result.select("metrics.numFilesRemoved", "metrics.numFilesAdded").collect()[0]
        transactions.record_txn(path, _OPTIMIZED, started)
        return f"compacted {removed} files into {added}"


def _claim_in(snapshot: Snapshot) -> Claim | None:
    text = snapshot.properties.get(_CLAIM)
    if text is None:
        return None
    owner, epoch, route = text.split(":")
    return Claim(owner, int(epoch), route=route)


def _refuse_another(path: str, route: RouteSpec) -> bool:
    """Return whether the table is claimed; raise ``PermanentError`` if another route holds the claim."""
    claim = _claim_in(Snapshot(path))
    if claim is not None and (other := claim.other(route)) is not None:
        raise claimed(f"the Delta table {path}", other, "PATH")
    return claim is not None


def _an(word: str) -> str:
    return f"an {word}" if word[0] in "aeiou" else f"a {word}"
