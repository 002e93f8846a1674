import fcntl
import json
from hashlib import sha256
from pathlib import Path

from connectors import ArrowSettings, Claim, EntryCount, PermanentError, RowSink, WriteResult


class FolderSettings(ArrowSettings):
    path: Path


class FolderSink(RowSink):
    """One JSON file per key."""

    Settings, mode = FolderSettings, "upsert"

    def target(self, route):
        return str(self.settings.path / route.table)

    def check(self):
        if not self.settings.path.is_dir():
            raise PermanentError(f"There is no folder {self.settings.path}.", "Create it, or mount it.")

    def claim(self, route):
        file = Path(self.target(route), "claim")
        return Claim(**json.loads(file.read_text())) if file.exists() else None

    def prepare(self, schema, route):
        Path(self.target(route)).mkdir(exist_ok=True)
        Path(self.target(route), "claim").write_text(
            json.dumps({"owner": route.owner, "epoch": route.epoch, "route": route.name})
        )
        return []  # no warnings

    def open(self, route):
        self.folder = Path(self.target(route))

    def write_rows(self, changes):
        stale, noop = [], []
        with (self.folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # compare and write atomically: other processes may write too
            for position, change in enumerate(changes):
                file = self.folder / f"{sha256(change.key.encode()).hexdigest()}.json"
                held = json.loads(file.read_text()) if file.exists() else {"guard": -1, "row": None}
                if change.guard < held["guard"]:
                    stale.append(position)
                    continue
                if change.deleted and held["row"] is None:
                    noop.append(position)
                row = None if change.deleted else change.row  # null marks a deleted key, so that an older upsert loses
                file.with_suffix(".new").write_text(json.dumps({"key": change.key, "guard": change.guard, "row": row}))
                file.with_suffix(".new").replace(file)
        return WriteResult(stale=stale, noop=noop)

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
