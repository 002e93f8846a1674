"""The commands ``replay`` and ``resync``."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from cdf_replicator.cli.options import RouteOrTable, Yes, load_settings


def replay(
    name: RouteOrTable,
    starting_version: Annotated[int, typer.Option(metavar="N", min=0, help="First commit version to deliver again.")],
    ending_version: Annotated[
        int | None,
        typer.Option(metavar="M", min=0, help="Last commit version; for append sinks only. [default: continue]"),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be delivered and write nothing.")
    ] = False,
    yes: Yes = False,
) -> None:
    """Deliver changes again from a commit version on.

    A sink that keeps one entry per key continues to the newest version, so that no older row remains.

    \b
    Examples:
      cdf-replicator replay orders_search --starting-version 12 --dry-run
      cdf-replicator replay orders --starting-version 12 --yes
      cdf-replicator replay orders_audit --starting-version 12 --ending-version 20
    """  # noqa: D301 - click keeps the line breaks after this mark
    if ending_version is not None and ending_version < starting_version:
        raise typer.BadParameter(f"{ending_version} is before {starting_version}", param_hint="'--ending-version'")
    loaded = load_settings(name, or_table=True)

    from cdf_replicator.commands import replay as command

    raise typer.Exit(command.replay(loaded, name, starting_version, ending_version, dry_run, yes))


def resync(
    name: Annotated[str, typer.Argument(metavar="ROUTE", help="The route to rebuild.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Compare source and target and write nothing.")] = False,
    max_removed_share: Annotated[
        float | None,
        typer.Option(
            metavar="X",
            min=0,
            max=1,
            help="Largest share of the target's entries to remove, such as 0.2. [default: the setting]",
        ),
    ] = None,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Skip the confirmation and allow any number of removals.")
    ] = False,
) -> None:
    """Rebuild a route's target from the current snapshot of its table and remove orphaned entries.

    Nothing is removed, and the route halts, if that would be a larger share of the target's entries than
    CDF_DELIVERY__MAX_REMOVED_SHARE. Repeat the command with --yes to continue.

    \b
    Examples:
      cdf-replicator resync orders_search --dry-run
      cdf-replicator resync orders_search
      cdf-replicator resync orders_search --yes
    """  # noqa: D301 - click keeps the line breaks after this mark
    loaded = load_settings(name)

    from cdf_replicator.commands import replay as command

    raise typer.Exit(command.resync(loaded, name, max_removed_share, dry_run, yes))


def pause(name: RouteOrTable) -> None:
    """Stop delivering until the route is resumed, also across restarts; the running micro-batch is finished first.

    Changes wait in the source table for as long as its retention keeps them: see the route's headroom.

    \b
    Examples:
      cdf-replicator pause orders_search
    """  # noqa: D301 - click keeps the line breaks after this mark
    _switch(name, "pause")


def resume(name: RouteOrTable) -> None:
    """Continue from where the route was paused, or retry a halted route at once.

    \b
    Examples:
      cdf-replicator resume orders_search
    """  # noqa: D301 - click keeps the line breaks after this mark
    _switch(name, "resume")


def _switch(name: str, kind: Literal["pause", "resume"]) -> None:
    loaded = load_settings(name, or_table=True)

    from cdf_replicator.commands import replay

    raise typer.Exit(replay.switch(loaded, name, kind))
