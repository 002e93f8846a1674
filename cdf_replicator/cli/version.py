"""The command ``version``: versions of the program, of its dependencies and of the installed sinks."""

from __future__ import annotations

import platform

import typer

from cdf_replicator import __version__


def version() -> None:
    """Print versions and the installed sink types.

    \b
    Examples:
      cdf-replicator version
      cdf-replicator --version
    """  # noqa: D301 - click keeps the line breaks after this mark
    from importlib.metadata import entry_points
    from importlib.metadata import version as version_of

    typer.echo(f"cdf-replicator {__version__}")
    for name in ("pyspark", "delta-spark"):
        typer.echo(f"{name} {version_of(name)}")
    typer.echo(f"python {platform.python_version()}")
    for point in sorted(entry_points(group="cdf_replicator.sinks")):
        origin = f"{point.dist.name} {point.dist.version}" if point.dist else "?"
        typer.echo(f"sink {point.name} ({origin})")
