"""Check the files of a Delta log for writes that a power cut or a disk error has torn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cdf_replicator.state.storage_path import StoragePath

_COMMIT_END: Final = b"\n"
_CHECKPOINT_END: Final = b"PAR1"


def are_whole(log: StoragePath, commits: Iterable[StoragePath]) -> bool:
    """Return whether every listed commit file after the newest checkpoint ends with a newline.

    Delta reads an empty file as a commit without actions. It reads no commit up to a checkpoint, which has their content.
    """
    known = _checkpoint_version(log)
    return not any(_ends(commit, _COMMIT_END) is False for commit in commits if _version(commit) > known)


def _checkpoint_version(log: StoragePath) -> int:
    """Return the version of the newest whole checkpoint; -1 if there is none."""
    checkpoints = sorted(log.glob("[0-9]*.checkpoint.parquet"), key=_version, reverse=True)
    return next((_version(file) for file in checkpoints if _ends(file, _CHECKPOINT_END)), -1)


def _version(file: StoragePath) -> int:
    return int(file.name.partition(".")[0])


def _ends(file: StoragePath, ending: bytes) -> bool | None:
    """Return whether a listed file has an ending; None if Delta's clean-up of its log has deleted it since."""
    try:
        return file.read_bytes().endswith(ending)
    except FileNotFoundError:
        return None
