"""The address of the lease holder and the secret of its queries, for commands that share the state path's folder.

    <state path>/service.json    mode 0600

Who can read the file can also read the environment of the service and the files that it reads. An object store has other
readers, so that no such file is written there.
"""

from __future__ import annotations

import json
import os
import socket
import tempfile
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

from cdf_replicator.state import lease
from cdf_replicator.state.storage_path import LocalPath

if TYPE_CHECKING:
    from cdf_replicator.state.storage_path import StoragePath

FILE: Final = "service.json"


class NoServiceError(Exception):
    """The state path names no service that this process can reach. The text is the reason."""


@dataclass(frozen=True, slots=True)
class ServiceRecord:
    """A service that answers queries.

    Args:
        address: The address on which it listens. An unspecified one, such as 0.0.0.0, leads to this host on Linux.
        port: The port.
        host: Name of its host.
        lease: Token of its lease. The record of a service that has lost the lease is void.
        secret: Bearer token of its queries, drawn at its start.
    """

    address: str
    port: int
    host: str
    lease: int
    secret: str


def publish(root: StoragePath, record: ServiceRecord) -> None:
    """Write the record of this process; does nothing on an object store."""
    if not isinstance(root, LocalPath):
        return
    handle, draft = tempfile.mkstemp(prefix=f".{FILE}.", dir=root)  # created with mode 0600
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(asdict(record), file)
        LocalPath(draft).replace(root / FILE)
    finally:
        LocalPath(draft).unlink(missing_ok=True)


def withdraw(root: StoragePath, token: int) -> None:
    """Remove the record of this process, unless another process has replaced it."""
    with suppress(NoServiceError, OSError):  # the record that stays is void without its lease
        if isinstance(root, LocalPath) and _read(root).lease == token:
            (root / FILE).unlink(missing_ok=True)


def find(root: LocalPath) -> ServiceRecord:
    """Return the record of the lease holder; raise ``NoServiceError``."""
    found = _read(root)
    try:
        held = lease.is_held(root, found.lease)
    except OSError as error:
        raise NoServiceError(f"the lease of the state path can't be read ({error})") from error
    if not held:
        raise NoServiceError("no service holds the lease of the state path")
    if found.host != socket.gethostname():
        raise NoServiceError(f"the service runs on another host ({found.host})")
    return found


def _read(root: LocalPath) -> ServiceRecord:
    try:
        return ServiceRecord(**json.loads((root / FILE).read_text("utf-8")))
    except FileNotFoundError:
        raise NoServiceError("no service answers queries on the state path") from None
    except PermissionError:
        raise NoServiceError(f"another user runs the service, and this user may not read {FILE}") from None
    except (OSError, ValueError, TypeError) as error:
        raise NoServiceError(f"{root / FILE} can't be read ({error})") from error
