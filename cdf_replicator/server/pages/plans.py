"""Write the numbers of a dry run as sentences."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cdf_replicator.server.pages.formatting import counted, number, operations

if TYPE_CHECKING:
    from cdf_replicator.queries.answer import ReplayPlan, ResyncPlan


def replay_lines(plan: ReplayPlan) -> list[str]:
    """Return the number of changes that a replay would deliver again."""
    kinds = operations(dict(zip(plan.kinds, plan.rows, strict=True)))
    what = f"Versions {number(plan.first)} to {number(plan.last)} of {plan.table} would be delivered again: "
    changes = f"{counted(plan.with_changes, 'version')} with changes, {counted(sum(plan.rows), 'row')}"
    return [f"{what}{changes} ({kinds})." if kinds else f"{what}{changes}."]


def resync_lines(plan: ResyncPlan) -> list[str]:
    """Return the number of rows that a resync would write, and of entries that it would remove."""
    rows = f"{counted(plan.rows, 'row')} of version {number(plan.version)} of {plan.table}"
    if plan.target is None:
        return [f"{rows} would be delivered, marked snapshot."]
    written = f"{rows} would be written again{', if they pass the filter' if plan.filtered else ''}."
    if plan.entries is None:
        return [written, f"{plan.target} is empty: nothing would be removed."]
    entries = "1 entry" if plan.entries == 1 else f"{number(plan.entries)} entries"
    removed = f"{number(plan.removed)} ({plan.removed / plan.entries if plan.entries else 0:.1%})"
    if plan.waiting_version is None:
        return [written, f"{plan.target} has {entries}, of which at least {removed} would be removed."]
    loaded = f"Version {number(plan.waiting_version)} is loaded already, and waits for a larger share to remove."
    return [written, f"{plan.target} has {entries}, of which {removed} would be removed. {loaded}"]
