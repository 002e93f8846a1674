"""Read from a route's checkpoint which part of a commit it has delivered."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def is_inside_a_commit(route: Path, table: Path) -> bool:
    """Say whether a route has committed a part of a commit of its table, and has another part of it before it.

    Args:
        route: The route's folder under the state path.
        table: The source table's folder.
    """
    checkpoints = list((route / "checkpoints").glob("*"))
    if not checkpoints:
        return False
    checkpoint = max(checkpoints, key=lambda folder: int(folder.name))
    committed = [int(file.name) for file in (checkpoint / "commits").glob("[0-9]*")]
    if not committed:
        return False
    end = json.loads((checkpoint / "offsets" / str(max(committed))).read_text().splitlines()[-1])
    return 0 <= end["index"] < _changed_files(table, end["reservoirVersion"]) - 1


def _changed_files(table: Path, version: int) -> int:
    """Count the files of a commit that the feed reads each alone; none where it has change files, which stay together."""
    lines = (table / "_delta_log" / f"{version:020}.json").read_text().splitlines()
    actions = [action for line in lines for action in json.loads(line).items()]
    if any(name == "cdc" for name, _ in actions):
        return 0
    return sum(name in ("add", "remove") and action["dataChange"] for name, action in actions)
