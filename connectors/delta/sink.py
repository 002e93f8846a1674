"""What the Delta sinks have in common: where they are, who fills a table, and its upkeep outside the batch path."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, Final

from pydantic import Field, model_validator

from connectors import place
from connectors.change import Claim, Watermark
from connectors.delta import commits, table
from connectors.errors import PermanentError, claimed, fenced, lost
from connectors.sink import FrameSink, SinkSettings
from connectors.sql import quote_identifier

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql.types import StructType
    from typing_extensions import Self

    from connectors.change import RouteSpec

_CLAIM: Final = "cdf_replicator.claim"
_DEFINITION: Final = "cdf_replicator.definition"
_OPTIMIZED: Final = "cdf-replicator:optimize"
_MINUTE: Final = 60
_HOUR: Final = 3600
LOOK_SECONDS: Final = 600
MOST_SMALL_FILES: Final = 50
"""As Delta's own auto compaction has it, which would run within a micro-batch."""


class DeltaSettings(SinkSettings):
    """``path``: the folder that holds the sink's tables."""

    path: str = Field(min_length=1, description="Folder of the sink's Delta tables, one each: <PATH>/<table slug>.")
    optimize_hours: float | None = Field(
        None, gt=0, allow_inf_nan=False, description="Compact small files so often, beside the running stream."
    )
    zorder_by: tuple[str, ...] = Field((), description="Cluster by these columns while compacting.")
    auto_compact: bool = Field(
        default=False, description="Compact when small files have piled up, beside the running stream."
    )

    @model_validator(mode="after")
    def _zorder_needs_optimize(self) -> Self:
        if self.zorder_by and self.optimize_hours is None and not self.auto_compact:
            raise ValueError("zorder_by needs optimize_hours or auto_compact: it is done while compacting")
        return self


class DeltaSink(FrameSink):
    """One Delta table per route, or per source table. ``what``: what such a table is called in messages."""

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
        return frozenset({f"delta {place.folder(self.target(route))}"})

    def check(self) -> None:
        """See that the folder can be written, where that can be seen without writing: a path Spark knows."""
        table.reach(self.settings.path, self.what)

    def claim(self, route: RouteSpec) -> Claim | None:
        """Read the table property that ``prepare`` set, and the last transaction of ours."""
        path = self.target(route)
        held = _claim_of(path) if table.exists(path) else None
        if held is None:
            return None
        app, self._seen = table.application(route, path), table.newest_version(path)
        if not held.is_of(route):
            return held
        known = -1 if route.mark is None else route.mark.txn_version
        back = commits.taken_back_since(path, app, known, self._seen)
        reached = self.complete(route, back.version) if back is not None and back.operation == "RESTORE" else None
        mark = None if reached is None else Watermark(-1, 0, reached)
        return replace(held, mark=mark, restored=back is not None, txn_version=table.recorded(path, app))

    def complete(self, route: RouteSpec, restored_at: int) -> int | None:  # noqa: ARG002
        """Return the version up to which every commit is surely in a table that was brought back; None if nothing says so.

        ``restored_at``: the table's version that the RESTORE made.
        """
        return None

    def mark(self, route: RouteSpec, watermark: Watermark) -> None:  # noqa: ARG002 - each write records its batch
        """See that nobody has taken back what is in the table."""
        self.check_kept(route)

    def check_kept(self, route: RouteSpec) -> None:
        """Read the commits since the last check; raises ``RetryableError`` after a RESTORE, a TRUNCATE and the like.

        Raises ``PermanentError`` if another route or another state path has taken the table over. The check reads each
        commit once, but a micro-batch needs two checks. The check of the write finds a RESTORE before the sink's own
        transaction follows it. The check of the watermark finds a RESTORE between the check of the write and its commit,
        before Spark commits the micro-batch.
        """
        path = self.target(route)
        claim = _claim_of(path)
        if claim is not None and not claim.is_of(route):
            raise fenced(f"the Delta table {path}")
        newest = table.newest_version(path)
        if self._seen is not None:
            if newest < self._seen:
                raise lost(f"the Delta table {path} is another one now")
            if (back := commits.taken_back(path, self._seen, newest)) is not None:
                raise lost(f"somebody has taken rows of the Delta table {path} back ({back.operation})")
        self._seen = newest

    def record_claim(self, route: RouteSpec, definition: str = "") -> None:
        """Ends ``prepare``. ``definition``: what may not change under an epoch, see ``refuse_redefinition``.

        Raises ``PermanentError`` where another route has recorded its claim meanwhile.
        """
        _refuse_another(self.target(route), route)
        given = {_CLAIM: f"{route.owner}:{route.epoch}:{route.name}"}
        if definition:
            given[_DEFINITION] = definition
        table.set_properties(self.target(route), given)

    def redefined(self, route: RouteSpec, definition: str, options: str) -> bool:
        """Whether a new epoch may rebuild the table by another definition; raises ``PermanentError`` within one."""
        path = self.target(route)
        held = table.properties(path).get(_DEFINITION, definition)
        if held == definition:
            return False
        claim = self.claim(route)
        if claim is not None and claim.epoch >= route.epoch:
            raise PermanentError(
                f"{options} of route {route.name} has changed, and the rows of {path} were made by the old one.",
                f"Run: cdf-replicator resync {route.name}",
            )
        return True

    def check_columns(self, schema: StructType, route: RouteSpec, own: Iterable[str]) -> None:
        """See that no column of the route has the name of one of the sink's own; raises ``PermanentError``."""
        if clashing := sorted({name.lower() for name in schema.fieldNames()} & set(own)):
            raise PermanentError(
                f"column {', '.join(clashing)} of route {route.name} has the name of {_an(self.what)} column.",
                f"Rename it: CDF_ROUTES__{route.name.upper()}__RENAME={clashing[0]}=source_{clashing[0].lstrip('_')}",
            )

    def check_sole(self, path: str, route: RouteSpec) -> None:
        """See that no other route fills an existing table in the same epoch; raises ``PermanentError``."""
        if (
            not _refuse_another(path, route)
            and route.epoch == 1
            and not table.session().read.format("delta").load(path).isEmpty()
        ):
            raise PermanentError(
                f"the Delta table {path} holds rows, and no route has recorded that it fills it.",
                "Name another PATH for the sink, or move that table away.",
            )

    def check_table(self, path: str, own: Iterable[str]) -> None:
        """See that an existing table is one of the sink's; raises ``PermanentError``."""
        if missing := sorted(set(own) - set(table.schema_of(path).fieldNames())):
            raise PermanentError(
                f"the Delta table {path} is no {self.what} table: it lacks {', '.join(missing)}.",
                "Name another PATH for the sink, or move that table away.",
            )

    def next_upkeep(self, route: RouteSpec) -> float | None:
        """When to compact by the clock, or to look for small files."""
        times = []
        if self.settings.optimize_hours is not None:
            times.append(self._next_compaction(route, self.settings.optimize_hours))
        if self.settings.auto_compact:
            times.append(self._looked_at + LOOK_SECONDS)
        return min(times, default=None)

    def upkeep(self, route: RouteSpec) -> str:
        """Compact the table if it is time. Its rows stay the same, and a write that meets it is tried again."""
        hours, now = self.settings.optimize_hours, time.time()
        if hours is not None and now >= self._next_compaction(route, hours):
            return self._compact(route)
        if self.settings.auto_compact and now >= self._looked_at + LOOK_SECONDS:
            self._looked_at = now
            if table.small_files(self.target(route)) >= MOST_SMALL_FILES:
                return self._compact(route)
        return ""

    def _next_compaction(self, route: RouteSpec, hours: float) -> float:
        return due(self.target(route), _OPTIMIZED, hours * _HOUR)

    def _compact(self, route: RouteSpec) -> str:
        started, path = int(time.time()), self.target(route)
        by = ", ".join(map(quote_identifier, self.settings.zorder_by))
        told = table.session().sql(f"OPTIMIZE {table.identifier(path)}" + (f" ZORDER BY ({by})" if by else ""))
        metrics = told.select("metrics.numFilesRemoved", "metrics.numFilesAdded").first()
        assert metrics is not None
        table.record(path, _OPTIMIZED, started)
        return f"compacted {metrics[0]} files into {metrics[1]}"


def _claim_of(path: str) -> Claim | None:
    text = table.properties(path).get(_CLAIM)
    if text is None:
        return None
    owner, epoch, route = text.split(":")
    return Claim(owner, int(epoch), route=route)


def _refuse_another(path: str, route: RouteSpec) -> bool:
    """Return whether the table is claimed; raises ``PermanentError`` where another route holds the claim."""
    claim = _claim_of(path)
    if claim is not None and (other := claim.other(route)) is not None:
        raise claimed(f"the Delta table {path}", other, "PATH")
    return claim is not None


def due(path: str, what: str, seconds: float) -> float:
    """When something is to be done again that a table has recorded, in epoch seconds; of no table, soon."""
    if not table.exists(path):
        return time.time() + _MINUTE
    return table.recorded(path, what) + seconds


def _an(word: str) -> str:
    return f"an {word}" if word[0] in "aeiou" else f"a {word}"
