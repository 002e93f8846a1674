"""The command ``healthcheck`` with options. ``cli.main`` runs it without this module if there are none."""

from __future__ import annotations

from typing import Annotated

import typer

from cdf_replicator.cli.probe import alive


def healthcheck(
    url: Annotated[
        str | None,
        typer.Option(help="URL of the service. [default: from CDF_HTTP__BIND_PORT, CDF_CONFIG_FILE or the lease]"),
    ] = None,
) -> None:
    """Check whether the service is alive; exit with 0 if it is, else 1.

    \b
    Examples:
      cdf-replicator healthcheck
      cdf-replicator healthcheck --url http://127.0.0.1:9102
    """  # noqa: D301 - click keeps the line breaks after this mark
    raise typer.Exit(alive(url))
