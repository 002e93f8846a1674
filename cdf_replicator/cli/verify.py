"""The command ``verify``."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from cdf_replicator.cli.options import RouteOrTable, load_settings


def verify(
    name: RouteOrTable,
    at: Annotated[
        int | None,
        typer.Option(
            metavar="VERSION", min=0, help="Version to compare. [default: the version that the route has delivered]"
        ),
    ] = None,
    columns: Annotated[
        str | None, typer.Option(metavar="C,...", help="Columns of the target to compare. [default: all]")
    ] = None,
    limit: Annotated[int, typer.Option(metavar="N", min=1, help="Most differences to print.")] = 20,
    format_: Annotated[
        Literal["table", "json"], typer.Option("--format", help="table for people, json for programs.")
    ] = "table",
) -> None:
    """Compare a target with its source table, while changes keep flowing.

    Reads the version that the route has delivered, and leaves out the keys that changed since. It takes no lease and writes
    nothing. Exit code 0: equal. 1: differences. 75: could not be compared.

    \b
    Examples:
      cdf-replicator verify orders_search
      cdf-replicator verify orders_search --columns name,price --limit 100
      cdf-replicator verify orders --format json
    """  # noqa: D301 - click keeps the line breaks after this mark
    loaded = load_settings(name, or_table=True)

    from cdf_replicator.commands import verify as command

    wanted = [each.strip() for each in (columns or "").split(",") if each.strip()]
    raise typer.Exit(command.verify(loaded, name, at, wanted, limit, format_))
