"""The command ``config show|schema|env``."""

from __future__ import annotations

import dataclasses
import json
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cdf_replicator.settings.reference import Entry

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def config() -> None:
    """Show the effective configuration, or list every setting.

    \b
    Examples:
      cdf-replicator config show
      cdf-replicator config env
      cdf-replicator config schema > cdf.schema.json
    """  # noqa: D301 - click keeps the line breaks after this mark


@app.command()
def show(
    format_: Annotated[Literal["text", "json"], typer.Option("--format", help="Output format.")] = "text",
) -> None:
    """Show every effective value and its origin; secrets are hidden.

    \b
    Examples:
      cdf-replicator config show
      cdf-replicator config show --format json
    """  # noqa: D301 - click keeps the line breaks after this mark
    from cdf_replicator import settings
    from cdf_replicator.settings.effective import effective

    values = effective(settings.load())
    if format_ == "json":
        typer.echo(json.dumps([dataclasses.asdict(value) for value in values], indent=2))
        return
    rows = [(value.path, "-" if value.value is None else value.value, value.origin) for value in values]
    typer.echo(_aligned([("Setting", "Value", "Origin"), *rows]))


@app.command()
def schema() -> None:
    """Print the JSON Schema of the YAML file (CDF_CONFIG_FILE), for editors.

    \b
    Examples:
      cdf-replicator config schema > cdf.schema.json
    """  # noqa: D301 - click keeps the line breaks after this mark
    from cdf_replicator.settings.json_schema import json_schema

    typer.echo(json.dumps(json_schema(), indent=2))


@app.command()
def env(
    format_: Annotated[Literal["text", "json"], typer.Option("--format", help="Output format.")] = "text",
) -> None:
    """List every variable with type, default and meaning, including those of each installed sink type.

    \b
    Examples:
      cdf-replicator config env
      cdf-replicator config env --format json
    """  # noqa: D301 - click keeps the line breaks after this mark
    from cdf_replicator.settings.reference import reference

    entries = reference()
    if format_ == "json":
        typer.echo(json.dumps([dataclasses.asdict(entry) for entry in entries], indent=2))
    else:
        typer.echo(_text(entries))


def _text(entries: Sequence[Entry]) -> str:
    blocks = []
    for group, members in groupby(entries, key=attrgetter("group")):
        lines = [f"{group}:"]
        for entry in members:
            default = "required" if entry.default == "required" else f"default {entry.default}"
            lines += [f"  {entry.variable}  ({entry.type}{', ' + default if entry.default else ''})"]
            lines += [f"      {entry.meaning}"] if entry.meaning else []
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def _aligned(rows: Sequence[tuple[str, ...]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )
