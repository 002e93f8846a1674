"""Read from the sinks what the status page shows of them and of their routes, before a configuration is in force.

A third party's sink may raise any error. It is then a problem of the configuration, and not one of the main loop, which
publishes the names.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from cdf_replicator.monitoring.definitions import definition
from cdf_replicator.settings import ConfigurationError
from cdf_replicator.settings.parsing.errors import Problems
from cdf_replicator.settings.redact import without_credentials
from connectors import Addressed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cdf_replicator.monitoring.status import Definition
    from cdf_replicator.route import Route
    from cdf_replicator.settings import Settings


class SinkName(NamedTuple):
    """The type and the address of a sink."""

    type: str
    endpoint: str


@dataclass(frozen=True, slots=True)
class Names:
    """The sinks by slug, and the definitions of the routes by name."""

    sinks: Mapping[str, SinkName]
    definitions: Mapping[str, Definition]


def names(settings: Settings, routes: Mapping[str, Route]) -> Names:
    """Return the names of a configuration and of its selected routes; raise ``ConfigurationError`` with every problem."""
    problems = Problems()
    sinks: dict[str, SinkName] = {}
    definitions: dict[str, Definition] = {}
    for slug, given in settings.sinks.items():
        try:
            sink = settings.sink(slug)
            endpoint = sink.endpoint if isinstance(sink, Addressed) else ""
            sinks[slug] = SinkName(given.type, without_credentials(endpoint))
        except Exception as error:  # noqa: BLE001 - see above
            problems.add(("sinks", slug), repr(given.type), f"a sink that names its address; it raised {_text(error)}")
    for name, route in routes.items():
        try:
            definitions[name] = definition(settings, route)
        except Exception as error:  # noqa: BLE001 - see above
            problems.add(("routes", name), None, f"a sink that names its target; it raised {_text(error)}")
    if problems:
        raise ConfigurationError(problems)
    return Names(sinks, definitions)


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
