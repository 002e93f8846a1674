"""Write the command reference, a generated part of docs/cli.md: the help text of each command."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer
from typer.testing import CliRunner

from cdf_replicator.cli.app import app

if TYPE_CHECKING:
    from collections.abc import Iterator

PROGRAM = "cdf-replicator"
WIDTH = "100"


def reference() -> str:
    return "\n\n".join(map(_section, _commands(typer.main.get_command(app))))


def _commands(group: Any, *above: str) -> Iterator[tuple[str, ...]]:
    """Yield each command below a group as its words, in the order of the help."""
    for word, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _commands(command, *above, word)
        else:
            yield (*above, word)


def _section(words: tuple[str, ...]) -> str:
    environment = {"COLUMNS": WIDTH, "TERMINAL_WIDTH": WIDTH, "NO_COLOR": "1"}
    answer = CliRunner(env=environment).invoke(app, [*words, "--help"], prog_name=PROGRAM)
    lines = (line.rstrip() for line in answer.output.strip().splitlines())
    return "\n".join([f"## {' '.join(words)}", "", "```text", *lines, "```"])
