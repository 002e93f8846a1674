"""The command ``validate``: report every problem before the service starts."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cdf_replicator.settings import Settings

FAILED = 1


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
        if format_ == "json":
            _print_json(error.problems)
            raise typer.Exit(error.exit_code) from error
        raise
    findings = [] if offline else _online(settings)
    if format_ == "json":
        _print_json(findings)
    else:
        _print_text(settings, findings, offline=offline)
    raise typer.Exit(FAILED if _errors(findings) else 0)


def _errors(findings: Sequence[Any]) -> list[Any]:
    """Return the findings without the warnings."""
    return [finding for finding in findings if getattr(finding, "severity", "error") == "error"]


def _online(settings: Settings) -> list[Any]:
    from cdf_replicator.commands.validate import check_online
    from cdf_replicator.monitoring import logs

    logs.configure(settings.log.level, settings.log.format)
    return list(check_online(settings))


def _print_json(problems: Sequence[Any]) -> None:
    rows = [_row(problem) for problem in problems]
    typer.echo(json.dumps({"ok": not _errors(problems), "problems": rows}, indent=2))


def _row(problem: Any) -> dict[str, Any]:
    return dataclasses.asdict(problem) if dataclasses.is_dataclass(problem) else {"what": str(problem)}  # type: ignore[arg-type]


def _print_text(settings: Settings, findings: Sequence[Any], *, offline: bool) -> None:
    for finding in findings:
        typer.echo(f"- {finding}", err=True)
    if _errors(findings):
        return
    what = "configuration" if offline else "configuration, tables and sinks"
    typer.echo(f"{what}: ok")
    for route in settings.routes.values():
        sink = settings.sinks[route.sink]
        typer.echo(f"  {route.name}: {route.source.location} -> {route.sink} ({sink.type})")
