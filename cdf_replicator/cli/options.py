"""Parse and check arguments of the command line."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from cdf_replicator.settings import Settings

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Skip the confirmation.")]
RouteOrTable = Annotated[str, typer.Argument(metavar="ROUTE|TABLE", help="A route, or a table for all of its routes.")]
Url = Annotated[
    str | None,
    typer.Option(help="URL of the service. [default: from CDF_HTTP__BIND_PORT, CDF_CONFIG_FILE or the lease]"),
]


def load_settings(route: str | None = None, *, or_table: bool = False, service: bool = False) -> Settings:
    """Load the settings and start the log of a command, or of the ``service``.

    Raises a usage error if ``route`` is no route (``or_table``: nor a table).
    """
    from cdf_replicator import settings
    from cdf_replicator.monitoring import logs

    loaded = settings.load()
    if route is not None and or_table:
        with_route("ROUTE|TABLE", route, loaded)
    elif route is not None:
        known("ROUTE", route, loaded.routes)
    (logs.configure if service else logs.configure_command)(loaded.log.level, loaded.log.format)
    return loaded


def known(option: str, name: str, names: Collection[str]) -> str:
    """Return ``name`` if it is one of ``names``; else raise a usage error with the nearest name."""
    if name in names:
        return name
    near = difflib.get_close_matches(name, list(names), n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(sorted(names)) or 'none'}"
    raise typer.BadParameter(f"{name!r} is not configured; {hint}", param_hint=repr(option))


def with_route(option: str, name: str, settings: Settings) -> str:
    """Return the name of a route, or of a table that has a route in this instance; else raise a usage error."""
    known(option, name, {*settings.routes, *settings.tables})
    if name not in settings.routes and all(route.source.slug != name for route in settings.routes.values()):
        hint = "give it SINKS"
        if settings.routes_include is not None:
            hint = f"CDF_ROUTES_INCLUDE limits it to {', '.join(sorted(settings.routes))}"
        raise typer.BadParameter(f"table {name!r} has no route in this instance; {hint}", param_hint=repr(option))
    return name


def table_with_route(option: str, name: str, settings: Settings) -> str:
    """Return the name of a table that has a route in this instance; else raise a usage error."""
    return with_route(option, known(option, name, settings.tables), settings)


def starting_versions(words: Sequence[str]) -> dict[str | None, int]:
    """Parse ``N`` or ``T=N`` to commit versions by table, before the configuration is read; None is every other table."""
    pairs = [word.rpartition("=") for word in words]
    return {table if separator else None: _version(version) for table, separator, version in pairs}


def check_started(versions: Collection[str | None], tables: Collection[str], settings: Settings) -> None:
    """Raise a usage error if a table that has a starting version of its own is not followed; empty ``tables`` follows all."""
    for name in versions:
        if name is not None:
            table_with_route("--starting-version", name, settings)
            if tables and name not in tables:
                raise _bad(f"{name!r} is not among the tables of --table")


def _version(text: str) -> int:
    if text.lower() == "latest":
        raise _bad("'latest' would lose changes committed while the service is down; give a commit version")
    if not (text.isascii() and text.isdigit() and len(text) < 14):  # noqa: PLR2004 - 43 bits, see Table in settings.models
        raise _bad(f"{text!r} is not a commit version: a whole number from 0 on, or TABLE=NUMBER")
    return int(text)


def _bad(text: str) -> typer.BadParameter:
    return typer.BadParameter(text, param_hint="'--starting-version'")
