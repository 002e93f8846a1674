"""Read from a route's checkpoint whether it is in the middle of a commit."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def is_inside_a_commit(route: Path, table: Path) -> bool:
    """Say whether a route has delivered, or is about to deliver, a part of a commit and not all of it.

    A micro-batch that is not committed is about to be delivered.

    Args:
        route: The route's folder under the state path.
        table: The source table's folder.
    """
    checkpoints = list((route / "checkpoints").glob("[0-9]*"))
    if not checkpoints:
        return False
    checkpoint = max(checkpoints, key=lambda folder: int(folder.name))
    newest = {_newest(checkpoint / "offsets"), _newest(checkpoint / "commits")} - {-1}
    return any(_ends_inside(checkpoint / "offsets" / str(batch), table) for batch in newest)


def _newest(log: Path) -> int:
    """Return the newest micro-batch in a log of Spark's checkpoint; -1 if there is none."""
    return max((int(file.name) for file in log.glob("[0-9]*")), default=-1)


def _ends_inside(offset: Path, table: Path) -> bool:
    end = json.loads(offset.read_text().splitlines()[-1])
    return 0 <= end["index"] < _changed_files(table, end["reservoirVersion"]) - 1


def _changed_files(table: Path, version: int) -> int:
    """Count the files of a commit that the feed reads each alone; none where it has change files, which stay together."""
    lines = (table / "_delta_log" / f"{version:020}.json").read_text().splitlines()
    actions = [action for line in lines for action in json.loads(line).items()]
    if any(name == "cdc" for name, _ in actions):
        return 0
    return sum(name in ("add", "remove") and action["dataChange"] for name, action in actions)
