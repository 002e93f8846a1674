"""Locate the state path: a folder of this machine, or a folder in an object store."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from cdf_replicator.errors.exceptions import StateError
from cdf_replicator.spark import session
from cdf_replicator.spark.hadoop_path import HadoopPath
from cdf_replicator.state.storage_path import LocalPath

if TYPE_CHECKING:
    from cdf_replicator.settings import Settings
    from cdf_replicator.settings.loader import StateSettings
    from cdf_replicator.state.storage_path import StoragePath


def state_folder(settings: Settings | StateSettings) -> StoragePath:
    """Return the state path; start Spark if it is not in this machine's own file system.

    Raises the errors of ``session.start``, and ``StateError``.
    """
    if (local := _local_folder(settings)) is not None:
        return local
    try:
        return HadoopPath.at(session.start(settings.spark), settings.state_path)
    except OSError as error:
        raise StateError(
            f"CDF_STATE_PATH={settings.state_path} can't be used ({error.strerror}). "
            "Add the file system's jars and credentials by CDF_SPARK__CONF, or name a folder on a volume."
        ) from error


def check_local_folder(settings: Settings | StateSettings) -> None:
    """Raise ``StateError`` if the state path is in this machine's own file system and not in a folder; starts no Spark."""
    if (local := _local_folder(settings)) is None:
        return
    try:
        local.nearest_folder()
    except OSError as error:
        raise StateError(
            f"CDF_STATE_PATH={settings.state_path} can't be used ({error.strerror}). Name the folder of the service's state."
        ) from error


def _local_folder(settings: Settings | StateSettings) -> LocalPath | None:
    location = urlsplit(settings.state_path)
    if location.scheme not in ("", "file"):
        return None
    return LocalPath(location.path if location.scheme else settings.state_path)
