"""The command ``status``: the state of a running service."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from cdf_replicator.cli.address import Address, found, read_token
from cdf_replicator.cli.http_client import NoAnswerError, alive, own_answer, say_where
from cdf_replicator.cli.options import Url  # noqa: TC001 - typer reads the annotation

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

WATCH_SECONDS: Final = 2.0
PIPE_WIDTH: Final = 200
MINUTE, HOUR, DAY = 60, 3600, 86_400

_COLOURS: Final = {
    "running": "green",
    "bootstrapping": "cyan",
    "starting": "cyan",
    "retrying": "yellow",
    "stalled": "yellow",
    "paused": "blue",
    "stopped": "blue",
    "halted": "bold red",
}


def status(
    url: Url = None,
    format_: Annotated[Literal["table", "json"], typer.Option("--format", help="Output format.")] = "table",
    watch: Annotated[bool, typer.Option("--watch", help="Repeat every two seconds until Ctrl-C.")] = False,
) -> None:
    """Print the state of a running service's routes, worst first.

    \b
    Examples:
      cdf-replicator status
      cdf-replicator status --watch
      cdf-replicator status --url http://replicator:9102 --format json | jq '.routes[].lag_seconds'
    """  # noqa: D301 - click keeps the line breaks after this mark
    address = found(url)
    say_where(url, address)
    try:
        if format_ == "json":
            _print_json(address, watch=watch)
        else:
            _print_table(address, watch=watch)
    except NoAnswerError as error:
        typer.echo(f"no running service: {error}; start one with 'cdf-replicator run', or name it with --url", err=True)
        raise typer.Exit(1) from error
    except KeyboardInterrupt:
        raise typer.Exit(0) from None


def _fetch(address: Address) -> dict[str, Any]:
    return own_answer(address, "/status", "routes", read_token())


def wide_console() -> Console:
    """Return a console for a table. Off a terminal it is wide, so that no cell is cut."""
    from rich.console import Console

    console = Console(highlight=False)
    return console if console.is_terminal else Console(width=PIPE_WIDTH, highlight=False)


def _print_json(address: Address, *, watch: bool) -> None:
    """Print the answer unchanged; with ``watch``, as one line every two seconds, and a later missed answer on stderr."""
    typer.echo(json.dumps(_fetch(address), indent=None if watch else 2))
    while watch:
        time.sleep(WATCH_SECONDS)
        try:
            typer.echo(json.dumps(_fetch(address)))
        except NoAnswerError as error:
            typer.echo(str(error), err=True)


def _print_table(address: Address, *, watch: bool) -> None:
    from rich.live import Live

    console = wide_console()
    if not watch:
        console.print(_view(_fetch(address)))
        return
    with Live(_view(_fetch(address)), console=console, auto_refresh=False) as live:
        while True:
            time.sleep(WATCH_SECONDS)
            live.update(_view_or_error(address), refresh=True)


def _view_or_error(address: Address) -> RenderableType:
    """Return the table, or the error of a missed answer in its place: a service that restarts answers again."""
    from rich.text import Text

    try:
        return _view(_fetch(address))
    except NoAnswerError as error:
        return Text(str(error), style="red")


def _view(answer: dict[str, Any]) -> RenderableType:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from cdf_replicator.settings.redact import printable

    service = answer.get("service") or {}
    head = Text(f"{service.get('state', '?')}: {service.get('summary', '')}")
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("ROUTE", "STATE", "DELIVERED", "SOURCE", "LAG", "ROWS/S", "DEAD LETTERS", "LAST ERROR"):
        table.add_column(name, overflow="fold", no_wrap=name not in ("LAST ERROR", "STATE"))
    for route in answer["routes"]:
        table.add_row(*(Text(printable(cell)) for cell in _cells(route)), style=_COLOURS.get(route.get("state", "")))
    return Group(head, Text(), table)


def _cells(route: dict[str, Any]) -> tuple[str, ...]:
    error = route.get("last_error") or {}
    reason = route.get("reason")
    return (
        str(route.get("route", "?")),
        f"{route.get('state', '?')} ({reason})" if reason else str(route.get("state", "?")),
        _or_dash(route.get("delivered_version")),
        _or_dash(route.get("source_version")),
        _lag(route),
        f"{route.get('processed_rows_per_second') or 0:.0f}",
        _or_dash(route.get("dead_letters")),
        " ".join(f"{error.get('what', '')} {error.get('next_step', '')}".split()),
    )


def _lag(route: dict[str, Any]) -> str:
    versions, seconds = route.get("lag_versions"), route.get("lag_seconds")
    if versions is None:
        return "-"
    return f"{versions} versions, {_duration(seconds)}" if seconds else f"{versions} versions"


def _duration(seconds: float) -> str:
    if seconds < MINUTE:
        return f"{seconds:.0f} s"
    if seconds < HOUR:
        return f"{seconds / MINUTE:.0f} min"
    return f"{seconds / HOUR:.1f} h" if seconds < DAY else f"{seconds / DAY:.1f} d"


def _or_dash(value: object) -> str:
    return "-" if value is None else str(value)


def healthcheck(url: Url = None) -> None:
    """Check whether the service is alive; exit with 0 if it is, else 1.

    \b
    Examples:
      cdf-replicator healthcheck
      cdf-replicator healthcheck --url http://127.0.0.1:9102
    """  # noqa: D301 - click keeps the line breaks after this mark
    raise typer.Exit(alive(url))
