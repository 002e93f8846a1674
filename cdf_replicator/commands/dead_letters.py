"""Print dead letters with their reasons, and submit commands to redrive or discard them."""

from __future__ import annotations

import json
import sys
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final, Literal

import structlog
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from cdf_replicator.commands import submit
from cdf_replicator.commands.session import AnswerError, Answers, reported
from cdf_replicator.queries.query import ListDeadLetters, ShowDeadLetter
from cdf_replicator.settings.redact import printable
from cdf_replicator.state import command_queue

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cdf_replicator.settings import Settings

log = structlog.get_logger(__name__)

SHORT_ID: Final = 12
LONGEST_REASON: Final = 240
MINUTE: Final = len("2026-01-31 12:30")
Format = Literal["table", "json"]
Closing = Literal["redrive", "discard"]
QUESTIONS: Final[dict[Closing, str]] = {
    "redrive": "Write the present rows of {letters} of {route} again?",
    "discard": "Discard {letters} of {route}? Their keys stay absent from the sink until they change again.",
}


def print_list(settings: Settings, route: str | None, *, closed: bool, limit: int, format_: Format) -> int:
    """Print open dead letters, or with ``closed`` all, newest first, and return the exit code."""

    def work() -> None:
        with closing(Answers(settings, settings.spark)) as answers:
            rows = list(answers.values(ListDeadLetters(route=route, closed=closed, limit=limit + 1)))
        _write(rows[:limit], format_, "No dead letters." if closed else "No open dead letters.")
        if len(rows) > limit:
            log.warning("list is incomplete: raise --limit", shown=limit)

    return reported(work)


def print_one(settings: Settings, letter: str) -> int:
    """Print a dead letter with its row as JSON and return the exit code.

    The command fails unless exactly one id begins with ``letter``.
    """

    def work() -> None:
        with closing(Answers(settings, settings.spark)) as answers:
            found = list(answers.values(ShowDeadLetter(id=letter)))
        if len(found) != 1:
            what = "Several dead letters begin" if found else "No dead letter begins"
            raise AnswerError(f"{what} with {letter}.", "See: cdf-replicator dead-letters list --all")
        (row,) = found
        sys.stdout.write(_json({**row, "row": row["row"] and json.loads(row["row"])}, indent=2) + "\n")

    return reported(work)


def close(settings: Settings, kind: Closing, route: str, ids: Sequence[str], *, yes: bool) -> int:
    """Submit a redrive or a discard and return the exit code.

    A redrive writes the present rows of the dead letters' keys. A discard leaves these keys absent from the sink.
    """
    question = QUESTIONS[kind].format(letters=_named(ids), route=route)
    return submit.execute(settings, [command_queue.Command(kind, route, letters=tuple(ids))], question, yes=yes)


def _named(ids: Sequence[str]) -> str:
    return f"dead letter{'s' if len(ids) > 1 else ''} {', '.join(ids)}" if ids else "all open dead letters"


def _write(rows: list[dict[str, Any]], format_: Format, none: str) -> None:
    if format_ == "json":
        sys.stdout.writelines(_json(row) + "\n" for row in rows)
        return
    console = Console(highlight=False)
    for row in rows:
        since = row["created_at"][:MINUTE]
        head = "  ".join((row["id"][:SHORT_ID], row["route"], row["code"], row["state"], since))
        console.print(Text(head, style="bold"), overflow="fold")
        reason = row["reason"] if len(row["reason"]) <= LONGEST_REASON else row["reason"][: LONGEST_REASON - 1] + "…"
        key = "no key" if row["key"] is None else f"key {row['key']}"
        details = Text(f"{printable(key)}, version {row['commit_version']}\n{printable(reason)}", overflow="fold")
        console.print(Padding(details, (0, 0, 0, 4)))
    if not rows:
        console.print(none)


def _json(row: dict[str, Any], indent: int | None = None) -> str:
    return json.dumps(row, ensure_ascii=False, indent=indent)
