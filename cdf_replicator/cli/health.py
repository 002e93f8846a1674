"""``healthcheck`` with options; without any, ``cli.main`` answers it without this."""

from __future__ import annotations

from typing import Annotated

import typer

from cdf_replicator.cli.probe import alive


def healthcheck(
    url: Annotated[
        str | None, typer.Option(help="Of the service. [default: by CDF_HTTP__BIND_PORT, CDF_CONFIG_FILE or the lease]")
    ] = None,
) -> None:
    """Ask the service whether it is alive; exits with 0 if it is, else 1.

    \b
    Examples:
      cdf-replicator healthcheck
      cdf-replicator healthcheck --url http://127.0.0.1:9102
    """  # noqa: D301 - click's own mark for a paragraph to be left alone
    raise typer.Exit(alive(url))
