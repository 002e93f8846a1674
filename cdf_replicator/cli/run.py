"""The commands ``run``, which follows the tables until SIGTERM or SIGINT, and ``reload`` of its configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from cdf_replicator.cli.options import check_started, load_settings, starting_versions, table_with_route
from cdf_replicator.cli.status import wide_console

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cdf_replicator.monitoring.status import RouteStatus


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

    With --once, a table of what each route delivered is the output.

    \b
    Examples:
      cdf-replicator run
      cdf-replicator run --once --table orders
      cdf-replicator run --standby
      cdf-replicator run --starting-version 12
      cdf-replicator run --starting-version orders=12 --starting-version items=40
    """  # noqa: D301 - click keeps the line breaks after this mark
    versions = starting_versions(starting_version or [])
    loaded = load_settings(service=True)
    tables = [table_with_route("--table", name, loaded) for name in table or ()]
    check_started(versions, tables, loaded)

    from cdf_replicator.runtime import supervisor

    ended = supervisor.run(loaded, once=once, tables=tables, starting_versions=versions, standby=standby)
    if once and ended.routes:
        _print_routes(ended.routes)
    raise typer.Exit(ended.code)


def reload(
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what the running service would do, and change nothing.")
    ] = False,
) -> None:
    """Let the running service read its YAML file and secret files again; print what it did.

    It starts, stops and restarts only the routes whose settings differ. A wrong configuration changes nothing.
    Environment variables are those of the start of the service.

    \b
    Examples:
      cdf-replicator reload --dry-run
      cdf-replicator reload
    """  # noqa: D301 - click keeps the line breaks after this mark
    from cdf_replicator.monitoring import logs
    from cdf_replicator.settings.loader import load_state_settings

    loaded = load_state_settings()
    logs.configure_command(loaded.log.level, loaded.log.format)

    from cdf_replicator.commands import submit

    raise typer.Exit(submit.reload(loaded, dry_run=dry_run))


def _print_routes(routes: Iterable[RouteStatus]) -> None:
    """Print what each route delivered; the log on stderr has the errors."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("ROUTE", "STATE", "VERSIONS", "ROWS", "REJECTED", "SECONDS"):
        table.add_column(name, no_wrap=True, justify="right" if name in ("ROWS", "REJECTED", "SECONDS") else "left")
    for route in routes:
        totals = route.totals
        table.add_row(
            route.route,
            route.state,
            "-" if totals.versions is None else "{}-{}".format(*totals.versions),
            f"{sum(totals.received.values()):,}",
            f"{sum(totals.rejected.values()):,}",
            f"{totals.seconds:.1f}",
        )
    wide_console().print(table)
