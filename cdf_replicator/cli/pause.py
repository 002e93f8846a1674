"""The commands ``pause`` and ``resume``."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from cdf_replicator.cli.words import known

Name = Annotated[str, typer.Argument(metavar="ROUTE|TABLE", help="A route, or a table for all of its routes.")]


def pause(name: Name) -> None:
    """Stop delivering until the route is resumed, also across restarts; the running micro-batch is finished first.

    Changes wait in the source table for as long as its retention keeps them: see the route's headroom.

    \b
    Examples:
      cdf-replicator pause orders_search
    """  # noqa: D301 - click keeps the line breaks after this mark
    _switch(name, "pause")


def resume(name: Name) -> None:
    """Continue from where the route was paused.

    \b
    Examples:
      cdf-replicator resume orders_search
    """  # noqa: D301 - click keeps the line breaks after this mark
    _switch(name, "resume")


def _switch(name: str, kind: Literal["pause", "resume"]) -> None:
    from cdf_replicator import logs, settings

    loaded = settings.load()
    known("ROUTE|TABLE", name, {*loaded.resolved, *loaded.tables})
    logs.configure(loaded.log.level, loaded.log.format)

    from cdf_replicator import replay

    raise typer.Exit(replay.switch(loaded, name, kind))
