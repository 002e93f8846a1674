"""The command ``dead-letters``: rows that a sink rejected."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from cdf_replicator.cli.options import Yes, load_settings

app = typer.Typer(
    help="""List, redrive or discard rows that a sink rejected.

    \b
    Examples:
      cdf-replicator dead-letters list
      cdf-replicator dead-letters redrive orders_search
    """,
    no_args_is_help=True,
    rich_markup_mode=None,
)

SHORTEST = 6


def _letter_id(text: str) -> str:
    """Return the id; reject a short prefix, which would soon match several dead letters."""
    if len(text) < SHORTEST or not set(text) <= set("0123456789abcdef"):
        raise typer.BadParameter(
            f"{text!r} is no id: give at least {SHORTEST} characters 0-9 and a-f of an id that `dead-letters list` prints",
            param_hint="'ID'",
        )
    return text


Route = Annotated[str, typer.Argument(metavar="ROUTE", help="The route.", show_default=False)]
Ids = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[ID]...",
        parser=_letter_id,
        help="Ids of dead letters, or their first characters. [default: all open]",
    ),
]


@app.command("list")
def list_(
    route: Annotated[str | None, typer.Argument(metavar="[ROUTE]", help="Only this route's. [default: all]")] = None,
    closed: Annotated[bool, typer.Option("--all", help="Include closed dead letters.")] = False,
    limit: Annotated[int, typer.Option(metavar="N", min=1, help="Print at most N.")] = 50,
    format_: Annotated[Literal["table", "json"], typer.Option("--format", help="Output format.")] = "table",
) -> None:
    """Print dead letters, newest first. Needs no lease.

    \b
    Examples:
      cdf-replicator dead-letters list
      cdf-replicator dead-letters list orders_search --all --format json
    """  # noqa: D301 - click keeps the line breaks after this mark
    loaded = load_settings(route)

    from cdf_replicator.commands import dead_letters

    raise typer.Exit(dead_letters.print_list(loaded, route, closed=closed, limit=limit, format_=format_))


@app.command()
def show(
    letter: Annotated[
        str, typer.Argument(metavar="ID", parser=_letter_id, help="Id of the dead letter, or its first characters.")
    ],
) -> None:
    """Print one dead letter as JSON, with the rejected row. Needs no lease.

    \b
    Examples:
      cdf-replicator dead-letters show 3f2a9c01b7de
    """  # noqa: D301 - click keeps the line breaks after this mark
    loaded = load_settings()

    from cdf_replicator.commands import dead_letters

    raise typer.Exit(dead_letters.print_one(loaded, letter))


@app.command()
def redrive(route: Route, ids: Ids = None, yes: Yes = False) -> None:
    """Write the current row of each dead letter's key, or its delete if the row is gone.

    The stored row of the dead letter is not written. Correct the row in the source table first, or the sink. A row that is
    rejected again stays a dead letter.

    \b
    Examples:
      cdf-replicator dead-letters redrive orders_search
      cdf-replicator dead-letters redrive orders_search 3f2a9c01b7de --yes
    """  # noqa: D301 - click keeps the line breaks after this mark
    _close("redrive", route, ids, yes=yes)


@app.command()
def discard(route: Route, ids: Ids = None, yes: Yes = False) -> None:
    """Close dead letters as discarded; their keys stay absent from the sink until they change again.

    \b
    Examples:
      cdf-replicator dead-letters discard orders_search 3f2a9c01b7de
      cdf-replicator dead-letters discard orders_search --yes
    """  # noqa: D301 - click keeps the line breaks after this mark
    _close("discard", route, ids, yes=yes)


def _close(kind: Literal["redrive", "discard"], route: str, ids: list[str] | None, *, yes: bool) -> None:
    loaded = load_settings(route)

    from cdf_replicator.commands import dead_letters

    raise typer.Exit(dead_letters.close(loaded, kind, route, ids or (), yes=yes))
