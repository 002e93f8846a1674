"""Keep copies of servers that another user than root can read, for servers that refuse to run as root."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from deploy.local.servers.server import CACHE, PROJECT, ServerError

NOBODY = 65534
"""User of the servers that refuse to run as root."""


def programs_folder(*, as_root: bool) -> Path:
    """Return the folder of unpacked programs: the project's cache, or a temporary folder that every user can read."""
    found = CACHE / "servers"
    if as_root and not is_readable(PROJECT):
        found = Path(tempfile.gettempdir()) / "cdf-replicator-servers"
    found.mkdir(mode=0o755, parents=True, exist_ok=True)
    if found.lstat().st_uid != os.geteuid():
        raise ServerError(
            f"{found} belongs to another user, so its programs are not run: remove it and repeat the command"
        )
    for folder in {found, found.parent} if found.is_relative_to(CACHE) else {found}:
        folder.chmod(0o755)
    return found


def moved(fresh: Path, place: Path) -> Path:
    """Make a folder readable by all users and move it to `place`, unless another process was faster."""
    for path in [fresh, *fresh.rglob("*")]:
        runs = path.is_dir() or "bin" in path.parts[-2:-1] or path.stat().st_mode & 0o100
        path.chmod(0o755 if runs else 0o644)
    try:
        fresh.rename(place)
    except OSError:
        if not place.exists():
            raise
    return place


def is_readable(path: Path) -> bool:
    """Return whether every user can read the folder."""
    return all(folder.stat().st_mode & 0o005 == 0o005 for folder in [path, *path.parents])
