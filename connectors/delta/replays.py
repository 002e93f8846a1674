"""Record which rows of a commit a replay has received, if the commit takes several micro-batches.

Identical rows of a commit may arrive in different micro-batches. The audit table alone does not show whether a row is
missing or is a copy that an earlier micro-batch appended. Each micro-batch therefore writes the hashes of its rows into
the folder ``<folder>/<owner>.<generation>.<version>.<batch>``. A repeated micro-batch overwrites its folder.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from connectors.change import CHANGE_TYPE, COMMIT_VERSION
from connectors.delta.tables import table
from connectors.delta.tables.session import session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from connectors.change import Batch

HASH: Final = "hash"
_GIVEN: Final = f"{COMMIT_VERSION} long, {CHANGE_TYPE} string, {HASH} string"


def given_before(folder: str, batch: Batch, version: int) -> DataFrame:
    """Return the rows of a commit that earlier micro-batches of the generation received, and remove obsolete folders.

    Args:
        folder: The folder of all micro-batches.
        batch: The present micro-batch.
        version: The oldest commit of the micro-batch. No earlier micro-batch holds rows of its later commits.

    """
    spark = session()
    earlier = []
    root, files = table.file_system(folder)
    for status in files.listStatus(root) if files.exists(root) else []:
        name = status.getPath().getName()
        beginning, _, number = name.rpartition(".")
        if beginning == _beginning(batch, version) and int(number) < batch.number:
            earlier.append(f"{folder}/{name}")
        else:
            files.delete(status.getPath(), True)
    return spark.read.schema(_GIVEN).parquet(*earlier) if earlier else spark.createDataFrame([], _GIVEN)


def remember(given: DataFrame, folder: str, batch: Batch, version: int) -> None:
    """Write the rows of a micro-batch's newest commit, since the next micro-batch may continue that commit."""
    rows = given.where(f"{COMMIT_VERSION} = {version}").select(COMMIT_VERSION, CHANGE_TYPE, HASH)
    rows.write.mode("overwrite").parquet(f"{folder}/{_beginning(batch, version)}.{batch.number}")


def forget(folder: str) -> None:
    """Remove the folders of the last replay."""
    root, files = table.file_system(folder)
    files.delete(root, True)


def _beginning(batch: Batch, version: int) -> str:
    return f"{batch.route.owner}.{batch.generation}.{version}"
