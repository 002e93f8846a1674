"""``dead-letters``: print what was refused and why; have it written again, or give it up."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any, Final, Literal

import structlog
from pyspark.sql import functions as F  # noqa: N812
from rich.console import Console
from rich.table import Table

from cdf_replicator import asked, errand, requests, spark
from cdf_replicator.dead_letters import DeadLetters, of_ids
from cdf_replicator.state import StatePath
from cdf_replicator.verdict import HaltError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession

    from cdf_replicator.settings import Settings

log = structlog.get_logger(__name__)

SHORT_ID: Final = 12
LONGEST_REASON: Final = 60
Format = Literal["table", "json"]


def print_list(settings: Settings, route: str | None, *, closed: bool, limit: int, format_: Format) -> int:
    """Print letters, newest first: the open ones, or all; returns the exit code."""

    def work(session: SparkSession) -> None:
        letters = _kept(session, settings)
        if route is not None:
            letters = letters.where(F.col("route") == route)
        if not closed:
            letters = letters.where("state = 'open'")
        found = letters.orderBy(F.desc("created_at"), "id").limit(limit + 1).drop("row")
        rows = [row.asDict() for row in found.toLocalIterator()]
        _write(rows[:limit], format_)
        if len(rows) > limit:
            log.warning("there are more; raise --limit", shown=limit)

    return asked.with_session(settings.spark, work)


def print_one(settings: Settings, letter: str) -> int:
    """Print a letter with its row, as JSON; returns the exit code: failed if there is none, or more than one."""

    def work(session: SparkSession) -> None:
        found = [row.asDict() for row in _kept(session, settings).where(of_ids([letter])).limit(2).toLocalIterator()]
        if len(found) != 1:
            what = "Several letters begin" if found else "No letter begins"
            raise HaltError("bad_request", f"{what} with {letter}.", "See: cdf-replicator dead-letters list --all")
        (told,) = found
        sys.stdout.write(_json({**told, "row": told["row"] and json.loads(told["row"])}, indent=2) + "\n")

    return asked.with_session(settings.spark, work)


def redrive(settings: Settings, route: str, letters: Sequence[str], *, yes: bool) -> int:
    """Have the present rows of letters' keys written; returns the exit code."""
    question = f"Write the present rows of {_named(letters)} of {route} again?"
    return _asked(settings, requests.Request("redrive", route, letters=tuple(letters)), question, yes=yes)


def discard(settings: Settings, route: str, letters: Sequence[str], *, yes: bool) -> int:
    """Have letters given up: their keys stay absent from the sink; returns the exit code."""
    question = f"Give up {_named(letters)} of {route}? Their keys stay absent from the sink until they change again."
    return _asked(settings, requests.Request("discard", route, letters=tuple(letters)), question, yes=yes)


def _asked(settings: Settings, request: requests.Request, question: str, *, yes: bool) -> int:
    if not errand.confirmed(question, yes=yes):
        return errand.USAGE
    return errand.carry_out(settings, [settings.resolved[request.route]], [request])


def _named(letters: Sequence[str]) -> str:
    return f"letter{'s' if len(letters) > 1 else ''} {', '.join(letters)}" if letters else "all open letters"


def _kept(session: SparkSession, settings: Settings) -> DataFrame:
    return DeadLetters(session, StatePath(spark.state_folder(settings)).dead_letters).all()


def _write(rows: list[dict[str, Any]], format_: Format) -> None:
    if format_ == "json":
        sys.stdout.writelines(_json(row) + "\n" for row in rows)
        return
    table = Table("id", "route", "key", "version", "code", "reason", "state", "since")
    for row in rows:
        cells = (row["id"][:SHORT_ID], row["route"], row["key"], row["commit_version"], row["code"])
        reason = row["reason"] if len(row["reason"]) <= LONGEST_REASON else row["reason"][: LONGEST_REASON - 1] + "…"
        since = row["created_at"].strftime("%Y-%m-%d %H:%M")
        table.add_row(*("" if cell is None else str(cell) for cell in cells), reason, row["state"], since)
    Console().print(table)


def _json(row: dict[str, Any], indent: int | None = None) -> str:
    return json.dumps(row, ensure_ascii=False, indent=indent, default=str)
