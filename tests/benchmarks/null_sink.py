"""A sink that takes rendered rows and keeps none, so that a run measures the service alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from connectors import ArrowSettings, ArrowSink, Claim, WriteResult
from connectors.rendering import json_row

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa
    from pyspark.sql import Column
    from pyspark.sql.types import StructType

    from connectors import RouteSpec
    from connectors.sink import Mode

INFO = {
    "METADATA": "Metadata-Version: 2.1\nName: null-sink\nVersion: 1.0\n",
    "entry_points.txt": f"[cdf_replicator.sinks]\nnull = {__name__}:NullSink\n",
}


def install(site: Path) -> None:
    """Write the distribution of the sink, for a service whose ``PYTHONPATH`` has this folder."""
    info = site / "null_sink-1.0.dist-info"
    info.mkdir(parents=True)
    for name, text in INFO.items():
        (info / name).write_text(text)


class NullSettings(ArrowSettings):
    """``path``: folder of the claims."""

    path: Path


class NullSink(ArrowSink):
    """Renders a row as the sinks of this project do, as JSON, and drops it in the Python worker."""

    Settings: ClassVar[type[NullSettings]] = NullSettings
    mode: ClassVar[Mode] = "upsert"
    settings: NullSettings

    def target(self, route: RouteSpec) -> str:
        return str(self.settings.path / route.table)

    def check(self) -> None:
        """Accept any state: there is no server."""

    def read_claim(self, route: RouteSpec) -> Claim | None:
        file = Path(self.target(route))
        return Claim(**json.loads(file.read_text())) if file.exists() else None

    def prepare(self, schema: StructType, route: RouteSpec) -> Sequence[str]:
        file = Path(self.target(route))
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps({"owner": route.owner, "epoch": route.epoch, "route": route.name}))
        return []

    def render(self, schema: StructType, route: RouteSpec) -> list[Column]:
        return [json_row(schema).alias("json")]

    def open(self, route: RouteSpec) -> None:
        """Open nothing."""

    def write(self, chunk: pa.RecordBatch) -> WriteResult:
        return WriteResult(sent_bytes=chunk.nbytes)
