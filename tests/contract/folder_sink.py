import fcntl
import json
from hashlib import sha256
from pathlib import Path

from connectors import ArrowSettings, Claim, PermanentError, RowSink, WriteResult


class FolderSink(RowSink):
    """A sink that keeps one JSON file per key."""

    mode = "upsert"

    class Settings(ArrowSettings):
        path: Path

    def target(self, route):
        return str(self.settings.path / route.table)

    def check(self):
        if not self.settings.path.is_dir():
            raise PermanentError(f"There is no folder {self.settings.path}.", "Create it, or mount it.")

    def read_claim(self, route):
        file = Path(self.target(route), "claim")
        return Claim(**json.loads(file.read_text())) if file.exists() else None

    def prepare(self, schema, route):
        Path(self.target(route)).mkdir(exist_ok=True)
        claim = {"owner": route.owner, "epoch": route.epoch, "route": route.name}
        Path(self.target(route), "claim").write_text(json.dumps(claim))
        return []  # no warnings

    def write_rows(self, changes):
        folder, stale, noop = Path(self.target(self.route)), [], []
        with (folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # compare and write atomically: other processes may write too
            for position, change in enumerate(changes):
                file = folder / f"{sha256(change.key.encode()).hexdigest()}.json"
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
