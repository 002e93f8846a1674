"""Record which rows of a commit a replay has received, if the commit takes several micro-batches.

Identical rows of a commit may arrive in different micro-batches. The audit table alone does not show whether a row is
missing or is a copy that an earlier micro-batch appended. Each micro-batch therefore writes the hashes of its rows into
the folder ``<folder>/<owner>.<generation>.<version>.<batch>``. A repeated micro-batch overwrites its folder.

A bounded replay may begin while the stream has delivered a part of a commit. The micro-batches of that part had no earlier
rows to compare with: they wrote no folder, and the table has each of their rows under their number. The first micro-batch
after them copies these rows into the folder of batch 0.
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


def given_before(folder: str, batch: Batch, version: int, held: DataFrame) -> DataFrame:
    """Return the rows of a commit that earlier micro-batches of the generation received, and remove obsolete folders.

    Args:
        folder: The folder of all micro-batches.
        batch: The present micro-batch.
        version: The oldest commit of the micro-batch. No earlier micro-batch holds rows of its later commits.
        held: The hashed rows of the audit table, with their ``route``, ``generation`` and ``batch``.

    """
    spark = session()
    earlier, recorded = [], batch.number == 1
    root, files = table.file_system(folder)
    for status in files.listStatus(root) if files.exists(root) else []:
        name = status.getPath().getName()
        beginning, _, number = name.rpartition(".")
        recorded |= name.startswith(_generation(batch)) and 0 < int(number) < batch.number
        if beginning == _beginning(batch, version) and int(number) < batch.number:
            earlier.append(f"{folder}/{name}")
        else:
            files.delete(status.getPath(), True)
    if not recorded:
        _write(_appended_before(held, batch), folder, batch, version, 0)
        earlier = [f"{folder}/{_beginning(batch, version)}.0"]
    return spark.read.schema(_GIVEN).parquet(*earlier) if earlier else spark.createDataFrame([], _GIVEN)


def remember(given: DataFrame, folder: str, batch: Batch, version: int) -> None:
    """Write the rows of a micro-batch's newest commit, since the next micro-batch may continue that commit."""
    _write(given, folder, batch, version, batch.number)


def forget(folder: str) -> None:
    """Remove the folders of the last replay."""
    root, files = table.file_system(folder)
    files.delete(root, True)


def _appended_before(held: DataFrame, batch: Batch) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812

    of_generation = (F.col("route") == batch.route.name) & (F.col("generation") == batch.generation)
    return held.where(of_generation & F.col("batch").between(1, batch.number - 1))


def _write(rows: DataFrame, folder: str, batch: Batch, version: int, number: int) -> None:
    of_commit = rows.where(f"{COMMIT_VERSION} = {version}").select(COMMIT_VERSION, CHANGE_TYPE, HASH)
    of_commit.write.mode("overwrite").parquet(f"{folder}/{_beginning(batch, version)}.{number}")


def _generation(batch: Batch) -> str:
    return f"{batch.route.owner}.{batch.generation}."


def _beginning(batch: Batch, version: int) -> str:
    return f"{_generation(batch)}{version}"
