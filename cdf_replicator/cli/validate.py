"""The commands ``validate`` and ``verify``: check a configuration before the service starts, and a target beside it."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from cdf_replicator.cli.options import RouteOrTable, load_settings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cdf_replicator.queries.answer import Finding
    from cdf_replicator.settings import Settings
    from cdf_replicator.settings.parsing import ConfigProblem


def validate(
    offline: Annotated[
        bool, typer.Option("--offline", help="Check the configuration only; connect to nothing.")
    ] = False,
    format_: Annotated[Literal["text", "json"], typer.Option("--format", help="Output format.")] = "text",
) -> None:
    """Check the configuration, then the tables, then the sinks; report every problem at once.

    Exits with 78 if the configuration is wrong, 1 if a table or a sink is. Exits with 0 if there are no errors.

    \b
    Examples:
      cdf-replicator validate
      cdf-replicator validate --offline
      cdf-replicator validate --format json | jq -r '.problems[].variable'
    """  # noqa: D301 - click keeps the line breaks after this mark
    from cdf_replicator.settings import ConfigurationError, load

    try:
        settings = load()
    except ConfigurationError as error:
        if format_ != "json":
            raise
        _print_json(error.problems, ok=False)
        raise typer.Exit(error.exit_code) from error
    findings = [] if offline else _online(settings)
    failed = any(finding.severity == "error" for finding in findings)
    if format_ == "json":
        _print_json(findings, ok=not failed)
    else:
        for finding in findings:
            typer.echo(f"- {finding}", err=True)
        if not failed:
            _print_routes(settings, "configuration" if offline else "configuration, tables and sinks")
    raise typer.Exit(int(failed))


def _online(settings: Settings) -> list[Finding]:
    from cdf_replicator.commands.validate import check_online
    from cdf_replicator.monitoring import logs

    logs.configure_command(settings.log.level, settings.log.format)
    return check_online(settings)


def _print_json(problems: Sequence[ConfigProblem | Finding], *, ok: bool) -> None:
    typer.echo(json.dumps({"ok": ok, "problems": [dataclasses.asdict(problem) for problem in problems]}, indent=2))


def _print_routes(settings: Settings, checked: str) -> None:
    from cdf_replicator.settings.redact import masked

    typer.echo(f"{checked}: ok")
    for route in settings.routes.values():
        sink = settings.sinks[route.sink]
        typer.echo(f"  {route.name}: {masked(route.source.location)} -> {route.sink} ({sink.type})")


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
    repair: Annotated[
        bool,
        typer.Option("--repair", help="Write the current rows of the entries that differ, then compare again."),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="With --repair: check whether it is allowed, and write nothing.")
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Skip the confirmation and allow any number of deletions.")
    ] = False,
) -> None:
    """Compare a target with its source table, while changes keep flowing.

    Reads the version that the route has delivered, and leaves out the keys that changed since. Without --repair it takes no
    lease and writes nothing. Exit code 0: equal. 1: differences. 75: could not be compared.

    \b
    Examples:
      cdf-replicator verify orders_search
      cdf-replicator verify orders_search --columns name,price --limit 100
      cdf-replicator verify orders --format json
      cdf-replicator verify orders_search --repair --dry-run
      cdf-replicator verify orders_search --repair --yes
    """  # noqa: D301 - click keeps the line breaks after this mark
    if (dry_run or yes) and not repair:
        raise typer.BadParameter("is an option of --repair", param_hint="'--dry-run'" if dry_run else "'--yes'")
    if repair and at is not None:
        raise typer.BadParameter("a repair compares the delivered version", param_hint="'--at'")
    loaded = load_settings(name, or_table=True)

    from cdf_replicator.commands import verify as command

    wanted = [each.strip() for each in (columns or "").split(",") if each.strip()]
    query = command.Query(name, at, wanted, limit, format_)
    raise typer.Exit(
        command.repair(loaded, query, dry_run=dry_run, yes=yes) if repair else command.verify(loaded, query)
    )
