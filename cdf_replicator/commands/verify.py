"""Compare the targets of routes with their source tables, print the differences, and repair them by the lease holder."""

from __future__ import annotations

import json
import sys
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal

import structlog
from rich.console import Console
from rich.table import Table
from rich.text import Text

from cdf_replicator.commands import submit
from cdf_replicator.commands.session import Answers, reported, routes_named
from cdf_replicator.queries.query import Verify
from cdf_replicator.runtime import exit_codes
from cdf_replicator.settings.redact import printable
from cdf_replicator.state import command_queue
from connectors.change import SNAPSHOT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cdf_replicator.settings import Settings
    from cdf_replicator.verification.result import Verification

log = structlog.get_logger(__name__)

Format = Literal["table", "json"]

UNWANTED_ROWS: Final = "delete the extra, different and foreign rows of the target (no command of the service does)"


@dataclass(frozen=True, slots=True)
class Query:
    """Select what ``verify`` compares and prints.

    Args:
        name: A route, or a table for each of its routes.
        at: The version of the source table; None for the version that a route has delivered.
        columns: The columns of the target; empty for all.
        limit: Most differences to print.
        format: Output format.
    """

    name: str
    at: int | None = None
    columns: Sequence[str] = ()
    limit: int = 20
    format: Format = "table"


def verify(settings: Settings, query: Query) -> int:
    """Compare; return 0 if all targets are equal, 1 if a target differs, 75 if a route can't be compared."""
    return _compare(settings, query)[0]


def repair(settings: Settings, query: Query, *, dry_run: bool, yes: bool) -> int:
    """Compare, have the lease holder write the entries that differ, and compare again; return the last exit code.

    A repair names each entry in its command, and it may delete as many entries as a resync may. A target that differs by
    more needs a resync. As for a resync, ``yes`` allows any number, and without a terminal there is no confirmation.
    """
    code, found = _compare(settings, query)
    share = 1.0 if yes else settings.delivery.max_removed_share
    unequal = [each for each in found if not each.comparison.equal and _is_repairable(each, share)]
    numbers = ", ".join(f"{each.comparison.unequal:,} entries of {each.route}" for each in unequal)
    if dry_run and unequal:
        sys.stderr.write(f"A repair would write {numbers} again from the source table.\n")
    if dry_run or not unequal:
        return code
    commands = [command_queue.Command("repair", each.route, identities=each.comparison.identities) for each in unequal]
    confirmed = yes or not sys.stdin.isatty()
    written = submit.execute(settings, commands, f"Write {numbers} again from the source table?", yes=confirmed)
    return written or _compare(settings, query)[0]


def _is_repairable(found: Verification, share: float) -> bool:
    """Return whether a repair may write the entries that differ; log the reason and the next step if it may not."""
    comparison, next_step = found.comparison, f"cdf-replicator resync {found.route}"
    doubtful = comparison.kinds["extra"] + comparison.kinds["foreign"]
    named = len(comparison.identities)
    if not found.repairable:
        reason, next_step = "not an entry per key", _correction(found)
    elif comparison.unequal > named:
        reason = f"{comparison.unequal:,} entries differ, and a repair can name {named:,} of them"
    elif doubtful > share * comparison.entries:
        reason = f"a repair might delete {doubtful:,} of {comparison.entries:,} entries (MAX_REMOVED_SHARE={share})"
    else:
        return True
    log.error("not repaired", route=found.route, reason=reason, next_step=f"To correct: {next_step}")
    return False


def _compare(settings: Settings, query: Query) -> tuple[int, list[Verification]]:
    """Compare and print each route; return the exit code of ``verify``, and the results."""
    codes: list[int] = []
    found: list[Verification] = []

    def compare(answers: Answers, route: str) -> None:
        wanted = Verify(route=route, at=query.at, columns=tuple(query.columns), limit=query.limit)
        (result,) = answers.values(wanted)
        _write(result, query.format)
        found.append(result)
        codes.append(exit_codes.DONE if result.comparison.equal else exit_codes.FAILED)

    with closing(Answers(settings, settings.spark)) as answers:
        for route in routes_named(query.name, settings.routes):
            code = reported(lambda name=route.name: compare(answers, name))  # type: ignore[misc]
            if code == exit_codes.CONFIGURATION:  # Spark does not start
                return code, found
            codes.append(exit_codes.TEMPORARY if code else code)
    return max(codes), found


def as_json(verification: Verification) -> dict[str, Any]:
    """Return the result as the values of JSON, without the list of identities."""
    result = asdict(replace(verification, comparison=replace(verification.comparison, identities=())))
    comparison = result.pop("comparison")
    del comparison["identities"]
    return {**result, **comparison}


def summary(verification: Verification) -> list[str]:
    """Return the result as sentences."""
    of, found = verification, verification.comparison
    rate = found.rows / of.seconds if of.seconds else 0
    versions = f"version {of.version}" if of.first_version is None else f"versions {of.first_version} to {of.version}"
    lines = [
        f"{of.route}: {versions} against {of.target}: {of.seconds:.0f} s, {rate:,.0f} rows/s",
        f"  {found.rows:,} rows in the table, {found.entries:,} entries in the target",
    ]
    if of.changed:
        lines.append(f"  {of.changed:,} keys changed up to version {of.newest} and were left out")
    if of.dead_letters:
        lines.append(f"  {of.dead_letters:,} keys have an open dead letter, and the target must not hold them")
    if of.left_out:
        lines.append(
            f"  columns left out, since they depend on joined tables or on the order of rows: {', '.join(of.left_out)}"
        )
    if found.equal:
        return [*lines, "  no difference"]
    kinds = " · ".join(f"{kind} {number:,}" for kind, number in found.kinds.items())
    columns = ", ".join(f"{name} {number:,}" for name, number in found.columns.items())
    return [*lines, f"  {kinds}" + (f" ({columns})" if columns else ""), f"  to correct: {_correction(of)}"]


def _correction(of: Verification) -> str:
    """Return the steps that remove the differences."""
    if of.first_version is None:
        return "cdf-replicator " + (f"verify {of.route} --repair" if of.repairable else f"resync {of.route}")
    kinds = {kind for kind, number in of.comparison.kinds.items() if number}
    steps = [UNWANTED_ROWS] if kinds - {"missing"} else []
    if kinds & {"missing", "different"}:
        steps += _deliveries(of, of.first_version)
    return ", then run: ".join(steps)


def _deliveries(of: Verification, first: int) -> list[str]:
    """Return the commands that append missing rows: a replay those of the feed, then a resync those of the snapshot.

    A replay with an end keeps the checkpoint, so that later comparisons include the snapshot. Those after a resync begin
    with its snapshot, and would no longer find that a change is missing.
    """
    found, start = of.comparison, first if of.snapshot_version is None else of.snapshot_version + 1
    of_snapshot = [name.startswith(f"{of.snapshot_version}:{SNAPSHOT}:") for name in found.identities]
    has_more = found.unequal > len(found.identities)
    steps = []
    if has_more or not all(of_snapshot):
        range_ = f"--starting-version {start} --ending-version {of.version}"
        steps.append(f"cdf-replicator replay {of.route} {range_} (it appends missing changes)")
    if any(of_snapshot) or (has_more and of.snapshot_version is not None):
        steps.append(f"cdf-replicator resync {of.route} (it appends a new snapshot)")
    return steps


def _write(verification: Verification, format_: Format) -> None:
    if format_ == "json":
        sys.stdout.write(json.dumps(as_json(verification), default=str) + "\n")
        return
    sys.stdout.write("\n".join(summary(verification)) + "\n")
    if verification.comparison.differences:
        table = Table("kind", "entry", "guard of version", "column", "table", "target", box=None)
        for each in verification.comparison.differences:
            cells = (each.kind, each.identity, each.version, each.column, each.table, each.target)
            table.add_row(*(Text("" if cell is None else printable(str(cell))) for cell in cells))
        Console().print(table)
