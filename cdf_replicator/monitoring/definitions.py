"""Collect the configuration for the status page: the effective settings and the definition of each route."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cdf_replicator.monitoring.status import Definition
from cdf_replicator.settings.effective import effective
from cdf_replicator.settings.parsing.raw import DEFAULT
from cdf_replicator.settings.redact import masked

if TYPE_CHECKING:
    from cdf_replicator.route import Route
    from cdf_replicator.settings import Settings
    from cdf_replicator.settings.effective import Setting


def effective_settings(settings: Settings) -> list[Setting]:
    """Return all effective settings, configured values before defaults."""
    found = [one for one in effective(settings) if one.value is not None]
    return sorted(found, key=lambda one: one.origin == DEFAULT)


def definition(settings: Settings, route: Route) -> Definition:
    sink = settings.sink(route.sink)
    return Definition(
        source=masked(route.source.location),
        target=masked(sink.target(route.spec(owner="", epoch=0))),
        mode=sink.mode,
        keys=route.keys,
        filter=route.filter,
        columns=route.columns,
    )
