"""Print the effect of a replay or a resync for ``--dry-run``, without the lease and without a write."""

from __future__ import annotations

import sys
from contextlib import closing
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from cdf_replicator.commands.session import Answers, reported
from cdf_replicator.queries.query import PlanReplay, PlanResync

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cdf_replicator.queries.answer import ReplayPlan, ResyncPlan
    from cdf_replicator.route import Route
    from cdf_replicator.settings import Settings


def preview_replay(settings: Settings, routes: Sequence[Route], first: int, last: int | None) -> int:
    """Print the number of rows by version and change type of each source table and return the exit code."""
    names = tuple(route.name for route in routes)
    console = Console()

    def work() -> None:
        with closing(Answers(settings, settings.spark)) as answers:
            for plan in answers.values(PlanReplay(routes=names, starting_version=first, ending_version=last)):
                console.print(_by_version(plan))
        console.print(f"Would be delivered again to: {', '.join(names)}. Nothing was written.")

    return reported(work)


def preview_resync(settings: Settings, route: Route) -> int:
    """Print the number of rows that a resync would write and of entries it would remove; return the exit code."""

    def work() -> None:
        with closing(Answers(settings, settings.spark)) as answers:
            (plan,) = answers.values(PlanResync(route=route.name))
        sys.stdout.write("\n".join(resync_lines(plan)) + "\n")

    return reported(work)


def resync_lines(plan: ResyncPlan) -> list[str]:
    """Return lines that compare the snapshot with the target."""
    if plan.target is None:
        rows = f"{plan.rows} rows of version {plan.version}"
        return [f"{plan.route}: {rows} would be delivered, marked snapshot. Nothing was written."]
    written = "those that pass the joined filter" if plan.filtered else "each"
    lines = [
        f"route   {plan.route}: {plan.target}",
        f"source  {plan.rows} rows in version {plan.version} of {plan.table}: {written} would be written again",
    ]
    if plan.entries is None:
        lines.append("target  empty: nothing would be removed")
    elif plan.waiting_version is not None:
        lines.append(
            f"target  {plan.entries} entries, of which {_share(plan.removed, plan.entries)} would be removed: version "
            f"{plan.waiting_version} is loaded, and its sweep waits for --yes"
        )
    else:
        share = _share(plan.removed, plan.entries)
        lines.append(f"target  {plan.entries} entries, of which at least {share} would be removed")
    return [*lines, "Nothing was written."]


def _share(removed: int, entries: int) -> str:
    return f"{removed} ({removed / entries if entries else 0:.1%})"


def _by_version(plan: ReplayPlan) -> Table:
    title = f"{plan.table}: versions {plan.first} to {plan.last} ({plan.with_changes} with changes)"
    table = Table("version", *plan.kinds, title=title)
    for row in plan.versions:
        table.add_row(*(str(value) for value in row))
    if plan.with_changes > len(plan.versions):
        table.add_row(f"… {plan.with_changes - len(plan.versions)} more", *("" for _ in plan.kinds))
    table.add_section()
    table.add_row("all", *(str(rows) for rows in plan.rows))
    return table
