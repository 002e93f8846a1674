"""Compare the targets of a service by ``verify``, beside a test's own comparison."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cdf_replicator.verification import verify
from connectors import Verifiable

if TYPE_CHECKING:
    from collections.abc import Collection

    from pyspark.sql import SparkSession

    from cdf_replicator.settings import Settings
    from cdf_replicator.state.store import StateStore


def verified(
    spark: SparkSession, settings: Settings, state_store: StateStore, left_out: Collection[str] = ()
) -> list[str]:
    """Return a text for each route whose target differs. Routes into append sinks are not compared, nor those ``left_out``."""
    found = []
    for name, route in settings.routes.items():
        sink = settings.sink(route.sink)
        if name not in left_out and sink.mode == "upsert" and isinstance(sink, Verifiable):
            result = verify(spark, route, sink, state_store).comparison
            if not result.equal:
                found.append(f"verify of {name}: {result.kinds} {result.differences}")
    return found
