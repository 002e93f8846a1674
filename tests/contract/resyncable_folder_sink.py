import json
from pathlib import Path

from connectors import EntryCount, Resyncable
from tests.contract.folder_sink import FolderSink


class ResyncableFolderSink(FolderSink, Resyncable):
    """A folder sink that a resync can clean."""

    def count_entries(self, route, below_guard):
        entries = [json.loads(file.read_text()) for file in Path(self.target(route)).glob("*.json")]
        guards = [entry["guard"] for entry in entries if entry["row"] is not None]
        highest = max((entry["guard"] for entry in entries), default=0)
        return EntryCount(len(guards), sum(guard < below_guard for guard in guards), highest)

    def delete_orphans(self, route, below_guard):
        below = self.count_entries(route, below_guard).orphans
        for file in Path(self.target(route)).glob("*.json"):
            if json.loads(file.read_text())["guard"] < below_guard:
                file.unlink()
        return below
