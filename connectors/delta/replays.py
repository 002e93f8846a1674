"""What a replay has been given of a commit whose rows take several micro-batches, beside the audit table.

Twins of one commit may come in different micro-batches. To tell a twin that is missing from a row that the table holds,
a replay has to know what it was given of the commit before: the hashes of its rows, kept in one folder for each
micro-batch, ``<folder>/<owner>.<generation>.<version>.<batch>``. A micro-batch given again writes its own once more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from connectors.change import CHANGE_TYPE, COMMIT_VERSION
from connectors.delta import table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from connectors.change import Batch

HASH: Final = "hash"
_GIVEN: Final = f"{COMMIT_VERSION} long, {CHANGE_TYPE} string, {HASH} string"


def given_before(folder: str, batch: Batch, version: int) -> DataFrame:
    """Rows of a commit that earlier micro-batches of the generation were given; what is needed no more is removed.

    ``version``: the oldest commit of the micro-batch; an earlier micro-batch has begun none of its later ones.
    """
    spark = table.session()
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
    """Keep what a micro-batch was given of its newest commit, of which the next micro-batch may bring more."""
    rows = given.where(f"{COMMIT_VERSION} = {version}").select(COMMIT_VERSION, CHANGE_TYPE, HASH)
    rows.write.mode("overwrite").parquet(f"{folder}/{_beginning(batch, version)}.{batch.number}")


def forget(folder: str) -> None:
    """Remove what the last replay has left."""
    root, files = table.file_system(folder)
    files.delete(root, True)


def _beginning(batch: Batch, version: int) -> str:
    return f"{batch.route.owner}.{batch.generation}.{version}"
