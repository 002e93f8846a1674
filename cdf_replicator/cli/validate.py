"""The command ``validate``: report every problem before the service starts."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cdf_replicator.commands.validate import Finding
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

    logs.configure(settings.log.level, settings.log.format)
    return check_online(settings)


def _print_json(problems: Sequence[ConfigProblem | Finding], *, ok: bool) -> None:
    typer.echo(json.dumps({"ok": ok, "problems": [dataclasses.asdict(problem) for problem in problems]}, indent=2))


def _print_routes(settings: Settings, checked: str) -> None:
    typer.echo(f"{checked}: ok")
    for route in settings.routes.values():
        sink = settings.sinks[route.sink]
        typer.echo(f"  {route.name}: {route.source.location} -> {route.sink} ({sink.type})")
