"""Compare the targets of routes with their source tables and print the differences, without the lease and without a write."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text

from cdf_replicator.commands.session import routes_named, succeeds, with_session
from cdf_replicator.runtime import exit_codes
from cdf_replicator.state.location import state_folder
from cdf_replicator.state.store import StateStore

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

    from cdf_replicator.route import Route
    from cdf_replicator.settings import Settings
    from cdf_replicator.verification.verify import Verification

Format = Literal["table", "json"]


def verify(settings: Settings, name: str, at: int | None, columns: Sequence[str], limit: int, format_: Format) -> int:
    """Compare a route, or each route of a table; return 0 if all are equal, 1 if a target differs, 75 if a route can't be compared."""
    codes: list[int] = []

    def work(session: SparkSession) -> None:
        from cdf_replicator.verification import verify as compared

        for route in routes_named(name, settings.routes):

            def compare(route: Route = route) -> None:
                store = StateStore(state_folder(settings))
                result = compared(session, route, settings.sink(route.sink), store, at=at, columns=columns, limit=limit)
                _write(result, format_)
                codes.append(exit_codes.DONE if result.comparison.equal else exit_codes.FAILED)

            if not succeeds(compare, route=route.name):
                codes.append(exit_codes.TEMPORARY)

    started = with_session(settings.spark, work)
    return max([started, *codes])


def as_json(verification: Verification) -> dict[str, Any]:
    """Return the result as the values of JSON."""
    result = asdict(verification)
    return {**{name: value for name, value in result.items() if name != "comparison"}, **result["comparison"]}


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
    return [*lines, f"  {kinds}" + (f" ({columns})" if columns else "")]


def _write(verification: Verification, format_: Format) -> None:
    if format_ == "json":
        sys.stdout.write(json.dumps(as_json(verification), default=str) + "\n")
        return
    sys.stdout.write("\n".join(summary(verification)) + "\n")
    if verification.comparison.differences:
        table = Table("kind", "entry", "guard of version", "column", "table", "target", box=None)
        for each in verification.comparison.differences:
            cells = (each.kind, each.identity, each.version, each.column, each.table, each.target)
            table.add_row(*(Text("" if cell is None else str(cell)) for cell in cells))
        Console().print(table)
