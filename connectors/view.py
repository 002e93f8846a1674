"""Define how the entries of a target are read back, for a sink that derives from ``Verifiable``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

IDENTITY: Final = "identity"
BODY: Final = "body"
ENTRY_SCHEMA: Final = f"{IDENTITY} string, guard bigint, {BODY} string"


class View(ABC):
    """The entries of one target.

    ``consistent`` declares whether every read sees the target at one moment, and ``expires`` whether entries may have
    expired. A row without an entry is then no difference.
    """

    consistent: ClassVar[bool]

    @property
    def expires(self) -> bool:
        return False

    @abstractmethod
    def entries(self, spark: SparkSession, schema: StructType) -> DataFrame:
        """Return a row for each entry: ``identity``, ``guard`` and ``row`` of type ``schema``.

        A guard is null for an entry without one, and ``row`` for an entry that can't be parsed. A column that an entry
        lacks is null. A deleted entry has no row here.
        """


class ScannedView(View):
    """A view that Spark's Python workers read in parts. It is pickled, so it holds no connection.

    Args:
        parts: Number of parts that may be read at once, each by one task.
    """

    parts: int

    @abstractmethod
    def scan(self, part: int) -> Iterator[pa.RecordBatch]:
        """Yield the entries of a part with the columns of ``ENTRY_SCHEMA``. Runs in a worker process."""

    @abstractmethod
    def read(self, schema: StructType) -> Column:
        """Return the row of an entry, over the column ``body``: the inverse of the sink's ``render``."""

    def entries(self, spark: SparkSession, schema: StructType) -> DataFrame:
        from connectors.change import GUARD, ROW

        def scan(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                for part in batch.column(0).to_pylist():
                    yield from self.scan(part)

        parts = spark.range(0, self.parts, 1, self.parts)
        return parts.mapInArrow(scan, ENTRY_SCHEMA).select(IDENTITY, GUARD, self.read(schema).alias(ROW))


def entry_batch(identities: list[str], guards: list[int | None], bodies: list[str | None]) -> pa.RecordBatch:
    """Return a batch with the columns of ``ENTRY_SCHEMA``."""
    import pyarrow as pa

    columns = [pa.array(identities, pa.string()), pa.array(guards, pa.int64()), pa.array(bodies, pa.string())]
    return pa.RecordBatch.from_arrays(columns, [IDENTITY, "guard", BODY])
