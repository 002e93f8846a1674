"""The state path: everything that the service must remember across restarts.

<state path>/format.json                        format version and owner id
<state path>/leases/                            the lease (see ``lease``)
<state path>/service.json                       address of the lease holder (see ``service_record``); local folders only
<state path>/routes/<route>/route.json          RouteState (see ``route_state``)
<state path>/routes/<route>/paused.json         exists while an operator has paused the route
<state path>/routes/<route>/verified.json       the last periodic comparison, or when it was scheduled (see ``verification.schedule``)
<state path>/routes/<route>/checkpoints/<generation>/   Spark's checkpoint of that generation
<state path>/dead_letters/                      a Delta table
<state path>/requests/                          commands for the lease holder
"""

from __future__ import annotations

import json
import os
import uuid
from dataclasses import asdict, replace
from datetime import datetime, timezone
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from cdf_replicator.errors.exceptions import LeaseLostError, StateError
from cdf_replicator.state.route_state import RouteState
from cdf_replicator.state.storage_path import LocalPath

if TYPE_CHECKING:
    from cdf_replicator.route import Route
    from cdf_replicator.state.lease import Lease
    from cdf_replicator.state.storage_path import StoragePath
    from connectors import RouteSpec

FORMAT: Final = 2


class StateStore:
    """The folder of the state path.

    Only the lease holder writes to the routes; ``lease`` is None in a standby and in a read-only command.
    """

    def __init__(self, root: StoragePath) -> None:
        self.root = root
        self.lease: Lease | None = None

    @classmethod
    def open(cls, root: StoragePath) -> StateStore:
        """Create the folder or check its format; raise ``StateError``, or ``OSError`` if an object store does not answer."""
        state = cls(root)
        try:
            if not state._format_file.exists():
                state._format_file.create_text(_text({"format": FORMAT, "owner": uuid.uuid4().hex}))
            probe = root / f".probe-{os.getpid()}"
            probe.write_text("")
            probe.unlink(missing_ok=True)  # another container's process with the same id may use the same probe file
        except OSError as error:
            raise state._not_writable(error) from error
        state._check_format()
        return state

    @classmethod
    def check(cls, root: StoragePath) -> None:
        """Check without writing whether ``open`` would succeed; raises its errors.

        The permission to write is checked for a folder of this machine only: an object store reports it at a write.
        """
        state = cls(root)
        try:
            if isinstance(root, LocalPath):
                root.check_writable()
            exists = state._format_file.exists()
        except OSError as error:
            raise state._not_writable(error) from error
        if exists:
            state._check_format()

    def _not_writable(self, error: OSError) -> Exception:
        """Return the error to raise for ``error``, which is the same if an object store does not answer."""
        if not (self.root.is_local or isinstance(error, PermissionError)):
            return error
        return StateError(
            f"CDF_STATE_PATH={self.root} is not writable ({error.strerror}). "
            "It holds the checkpoints and must survive restarts: mount a volume there or name another folder."
        )

    def _check_format(self) -> None:
        found = self._format.get("format")
        if found != FORMAT:
            older = isinstance(found, int) and found < FORMAT
            raise StateError(
                f"CDF_STATE_PATH={self.root} has state format {found}, this version reads format {FORMAT}. It was written "
                f"by {'an older' if older else 'a newer'} cdf-replicator: run that version, or name an empty folder and "
                "rebuild each target with: cdf-replicator resync ROUTE."
            )

    @cached_property
    def owner(self) -> str:
        """Identity of this state path, written into every target that it fills."""
        return str(self._format["owner"])

    def route_spec(self, route: Route, state: RouteState) -> RouteSpec:
        """Return what a sink may know of a route in this state."""
        spec = route.spec(owner=self.owner, epoch=state.epoch, fence=self.lease.token if self.lease else 0)
        first = state.first_generation or 0
        return replace(spec, table_id=state.table_id, first_generation=first, snapshot_version=state.snapshot_version)

    def checkpoint(self, route: str, generation: int) -> StoragePath:
        return self.root / "routes" / route / "checkpoints" / str(generation)

    def newest_generation(self, route: str) -> int:
        """Return the highest generation that has a checkpoint; 0 if there is none."""
        folders = (self.root / "routes" / route / "checkpoints").glob("*")
        return max((int(folder.name) for folder in folders if folder.name.isdigit()), default=0)

    @property
    def dead_letters(self) -> StoragePath:
        return self.root / "dead_letters"

    @property
    def requests(self) -> StoragePath:
        return self.root / "requests"

    def load(self, route: str) -> RouteState | None:
        """Return the state of the route; None before its first start."""
        path = self._route_file(route)
        if not path.exists():
            return None
        try:
            return RouteState(**json.loads(path.read_text(encoding="utf-8")))
        except (ValueError, TypeError) as error:
            raise StateError(
                f"{path} is damaged ({error}). Restore it from a backup, or rebuild the target."
            ) from error

    def save(self, state: RouteState) -> None:
        """Write the state durably, since a bootstrap pins its version with it. Raises ``LeaseLostError``."""
        if self.lease is not None and not self.lease.held:
            raise LeaseLostError(f"The lease of {self.root} is lost: another process writes there.")
        write_json(self._route_file(state.route), asdict(state))

    def is_paused(self, route: str) -> bool:
        return self._pause_file(route).exists()

    def set_paused(self, route: str, *, paused: bool = True) -> None:
        """Record a pause, which persists across restarts, or remove it."""
        if paused:
            write_json(self._pause_file(route), {"since": datetime.now(timezone.utc).isoformat(timespec="seconds")})
        else:
            self._pause_file(route).unlink(missing_ok=True)

    def verified_file(self, route: str) -> StoragePath:
        """Return the path of the result of the route's last periodic comparison, or of the time of its first schedule."""
        return self.root / "routes" / route / "verified.json"

    def _pause_file(self, route: str) -> StoragePath:
        return self.root / "routes" / route / "paused.json"

    def _route_file(self, route: str) -> StoragePath:
        return self.root / "routes" / route / "route.json"

    @property
    def _format_file(self) -> StoragePath:
        return self.root / "format.json"

    @cached_property
    def _format(self) -> dict[str, Any]:
        try:
            return dict(json.loads(self._format_file.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError) as error:
            if isinstance(error, OSError) and not (self.root.is_local or isinstance(error, FileNotFoundError)):
                raise  # a store that does not answer says nothing about the file
            raise StateError(f"{self._format_file} can't be read ({error}). Restore it from a backup.") from error


def write_json(path: StoragePath, content: dict[str, Any]) -> None:
    path.replace_text(_text(content))


def _text(content: dict[str, Any]) -> str:
    return json.dumps(content, indent=1, sort_keys=True)
