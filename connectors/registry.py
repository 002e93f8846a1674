"""Find sink classes by type name in the entry-point group ``cdf_replicator.sinks``, built-in sinks included."""

from __future__ import annotations

from importlib.metadata import entry_points
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from connectors.sink import Sink

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP: Final = "cdf_replicator.sinks"


class SinkNotFoundError(Exception):
    """The sink type is unknown, or its client library is missing. The text names the operator's next step."""


def installed() -> dict[str, EntryPoint]:
    """Return the sinks of every installed distribution by type name, sorted."""
    return {point.name: point for point in sorted(entry_points(group=GROUP), key=lambda point: point.name)}


def require(package: str) -> None:
    """Check that a client library is installed, without the cost of its import; raises ``ModuleNotFoundError``.

    A sink's module calls this at import time. ``load`` then reports the extra to install.
    """
    if find_spec(package) is None:
        raise ModuleNotFoundError(f"No module named {package!r}", name=package)


def load(type_name: str) -> type[Sink]:
    """Return the class of a sink type; raises ``SinkNotFoundError``."""
    points = installed()
    if type_name not in points:
        raise SinkNotFoundError(f"unknown sink type {type_name!r}; installed: {', '.join(points) or 'none'}")
    point = points[type_name]
    try:
        sink = point.load()
    except ModuleNotFoundError as error:
        raise SinkNotFoundError(_missing(point, error)) from error
    except (ImportError, AttributeError) as error:
        raise SinkNotFoundError(f"sink type {type_name!r} can't be loaded from {point.value!r}: {error}") from error
    if not (isinstance(sink, type) and issubclass(sink, Sink)):
        raise SinkNotFoundError(f"entry point {point.value!r} of sink type {type_name!r} is not a connectors.Sink")
    return sink


def _missing(point: EntryPoint, error: ModuleNotFoundError) -> str:
    distribution = point.dist.name if point.dist else "cdf-replicator"
    if error.name is not None and f"{point.module}.".startswith(f"{error.name}."):
        return f"sink type {point.name!r} can't be loaded from {point.value!r}: {distribution!r} has no such module"
    return (
        f"sink type {point.name!r} needs the Python package {error.name!r}, which is not installed; "
        f"run: pip install '{distribution}[{point.name}]'"
    )
