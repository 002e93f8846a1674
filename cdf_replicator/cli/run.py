"""The command ``run``: follow the tables until SIGTERM or SIGINT."""

from __future__ import annotations

from typing import Annotated

import typer

from cdf_replicator.cli.options import by_table, known, load_settings, starting_versions


def run(
    once: Annotated[
        bool, typer.Option("--once", help="Deliver all pending changes, then exit; for cron and tests.")
    ] = False,
    table: Annotated[
        list[str] | None, typer.Option(metavar="T", help="Follow this table only; may be repeated. [default: all]")
    ] = None,
    starting_version: Annotated[
        list[str] | None,
        typer.Option(
            metavar="N|T=N",
            help="Start from this commit version, for every table or for table T; may be repeated. Repeated after a restart, the route resumes instead.",
        ),
    ] = None,
    standby: Annotated[
        bool, typer.Option("--standby", help="If another instance holds the lease, wait and take over when it ends.")
    ] = False,
) -> None:
    """Follow the configured tables and keep their sinks up to date.

    \b
    Examples:
      cdf-replicator run
      cdf-replicator run --once --table orders
      cdf-replicator run --standby
      cdf-replicator run --starting-version 12
      cdf-replicator run --starting-version orders=12 --starting-version items=40
    """  # noqa: D301 - click keeps the line breaks after this mark
    requested = starting_versions(starting_version or [])
    loaded = load_settings()
    tables = [known("--table", name, loaded.tables) for name in table or ()]
    versions = by_table(requested, tables or loaded.tables, loaded.tables)

    from cdf_replicator.runtime import supervisor

    raise typer.Exit(supervisor.run(loaded, once=once, tables=tables, starting_versions=versions, standby=standby))
