"""What the Delta sinks have in common: where they are, who fills a table, and its upkeep outside the batch path."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, ClassVar, Final

from pydantic import Field, model_validator

from connectors.change import Claim
from connectors.delta import table
from connectors.errors import PermanentError
from connectors.sink import FrameSink, SinkSettings

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql.types import StructType
    from typing_extensions import Self

    from connectors.change import RouteSpec

_CLAIM: Final = "cdf_replicator.claim"
_DEFINITION: Final = "cdf_replicator.definition"
_UPKEEP: Final = "cdf-replicator:upkeep"
_MINUTE: Final = 60
_HOUR: Final = 3600


class DeltaSettings(SinkSettings):
    """``path``: the folder that holds the sink's tables."""

    path: str = Field(min_length=1, description="Folder of the sink's Delta tables, one each: <PATH>/<table slug>.")
    optimize_hours: float | None = Field(
        None, gt=0, allow_inf_nan=False, description="Compact small files so often, beside the running stream."
    )
    zorder_by: tuple[str, ...] = Field((), description="Cluster by these columns while compacting.")
    auto_compact: bool = Field(
        default=False, description="Have Delta compact after a write that left many small files."
    )

    @model_validator(mode="after")
    def _zorder_needs_optimize(self) -> Self:
        if self.zorder_by and self.optimize_hours is None:
            raise ValueError("zorder_by needs optimize_hours: it is done while compacting")
        return self


class DeltaSink(FrameSink):
    """One Delta table per route. ``what``: what such a table is called in messages."""

    settings: DeltaSettings
    what: ClassVar[str]

    @property
    def endpoint(self) -> str:
        return self.settings.path

    def target(self, route: RouteSpec) -> str:
        return f"{self.settings.path.rstrip('/')}/{route.table}"

    def check(self) -> None:
        """See that the folder can be written, where that can be seen without writing: a path Spark knows."""
        table.reach(self.settings.path, self.what)

    def claim(self, route: RouteSpec) -> Claim | None:
        """Read the table property that ``prepare`` set."""
        path = self.target(route)
        text = table.properties(path).get(f"{_CLAIM}.{route.name}") if table.exists(path) else None
        if text is None:
            return None
        owner, epoch = text.split(":")
        return Claim(owner, int(epoch))

    def record_claim(self, route: RouteSpec, definition: str = "") -> None:
        """Ends ``prepare``. ``definition``: what may not change under an epoch, see ``refuse_redefinition``."""
        given = {f"{_CLAIM}.{route.name}": f"{route.owner}:{route.epoch}"}
        if definition:
            given[f"{_DEFINITION}.{route.name}"] = definition
        if self.settings.auto_compact:
            given["delta.autoOptimize.autoCompact"] = "true"
        table.set_properties(self.target(route), given)

    def redefined(self, route: RouteSpec, definition: str, options: str) -> bool:
        """Whether a new epoch may rebuild the table by another definition; raises ``PermanentError`` within one."""
        path = self.target(route)
        held = table.properties(path).get(f"{_DEFINITION}.{route.name}", definition)
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

    def check_table(self, path: str, own: Iterable[str]) -> None:
        """See that an existing table is one of the sink's; raises ``PermanentError``."""
        if missing := sorted(set(own) - set(table.schema_of(path).fieldNames())):
            raise PermanentError(
                f"the Delta table {path} is no {self.what} table: it lacks {', '.join(missing)}.",
                "Name another PATH for the sink, or move that table away.",
            )

    def upkeep_hours(self) -> float | None:
        return self.settings.optimize_hours

    def next_upkeep(self, route: RouteSpec) -> float | None:
        """So many hours after the last one, which the table itself remembers."""
        hours, path = self.upkeep_hours(), self.target(route)
        if hours is None:
            return None
        if not table.exists(path):
            return time.time() + _MINUTE
        return table.recorded(path, _UPKEEP) + hours * _HOUR

    def upkeep(self, route: RouteSpec) -> str:
        """Compact the table. Its rows stay the same, and a write that meets it is tried again."""
        started, path, done = int(time.time()), self.target(route), ""
        if self.settings.optimize_hours is not None:
            by = ", ".join(map(table.quoted, self.settings.zorder_by))
            told = table.session().sql(f"OPTIMIZE {table.identifier(path)}" + (f" ZORDER BY ({by})" if by else ""))
            metrics = told.select("metrics.numFilesRemoved", "metrics.numFilesAdded").first()
            assert metrics is not None
            done = f"compacted {metrics[0]} files into {metrics[1]}"
        table.record(path, _UPKEEP, started)
        return done


def _an(word: str) -> str:
    return f"an {word}" if word[0] in "aeiou" else f"a {word}"
