"""Define how the entries of a target are read back, for a sink that derives from ``Verifiable``."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

IDENTITY: Final = "identity"
BODY: Final = "body"
ENTRY_SCHEMA: Final = f"{IDENTITY} string, guard bigint, {BODY} string"
PACED: Final = "cdf.paced"
"""Local property of a Spark job that pauses for most of the time, so that other jobs find an idle processor."""
PAUSE: Final = 9
"""Seconds of pause after a second of work."""
LONGEST_PAUSE_SECONDS: Final = 10.0
"""A server may end an idle view: Elasticsearch after five minutes."""
SLOT_MILLISECONDS: Final = 100
ROWS_BETWEEN_CHECKS: Final = 16
"""Rows that a paced task reads before it checks the clock again."""
FIRST_PAGE: Final = 16
"""Entries of the first page of a scan."""
PAGE_BYTES: Final = 8 * 2**20
"""Bytes of a page of a scan, about."""


class View(ABC):
    """The entries of one target.

    ``consistent`` declares whether every read sees the target at one moment, and ``expires`` whether entries may have
    expired. A row without an entry is then no difference.
    """

    consistent: ClassVar[bool]

    @property
    def expires(self) -> bool:
        return False

    def leaves_entry(self, schema: StructType) -> Column | None:  # noqa: ARG002 - a sink may need it
        """Return the condition, over the column ``row``, of the rows that have an entry; None if each row has one."""
        return None

    def kept(self, schema: StructType) -> StructType:
        """Return the types in which rows are compared: those of ``schema``, or arrays of shorter numbers if the target keeps such."""
        return schema

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
            from pyspark import TaskContext

            task = TaskContext.get()
            is_paced = task is not None and task.getLocalProperty(PACED) is not None
            for batch in batches:
                for part in batch.column(0).to_pylist():
                    entries = self.scan(part)
                    yield from with_pauses(entries) if is_paced else entries

        parts = spark.range(0, self.parts, 1, self.parts)
        return parts.mapInArrow(scan, ENTRY_SCHEMA).select(IDENTITY, GUARD, self.read(schema).alias(ROW))


def with_pauses(
    batches: Iterator[pa.RecordBatch],
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[pa.RecordBatch]:
    """Yield the batches, and pause after each ``PAUSE`` times as long as it took to read."""
    began = clock()
    for batch in batches:
        seconds = clock() - began
        yield batch
        sleep(min(PAUSE * seconds, LONGEST_PAUSE_SECONDS))
        began = clock()


def paced(frame: DataFrame) -> DataFrame:
    """Return the frame; if the jobs of this thread are ``PACED``, one task reads it, at a tenth of its speed.

    The task works at the beginning of each slot of a tenth of a second, and sleeps until the next. The sleep ends if
    Spark cancels the task.
    """
    from pyspark.sql import functions as F  # noqa: N812

    if frame.sparkSession.sparkContext.getLocalProperty(PACED) is None:
        return frame
    within = f"cast(java_method('java.lang.System', 'currentTimeMillis') as bigint) % {SLOT_MILLISECONDS}"
    sleep = f"java_method('java.lang.Thread', 'sleep', {SLOT_MILLISECONDS} - {within})"
    checks = F.monotonically_increasing_id() % ROWS_BETWEEN_CHECKS == 0
    is_over = F.expr(f"{within} >= {SLOT_MILLISECONDS // (PAUSE + 1)}")
    return frame.coalesce(1).where(F.when(checks & is_over, F.expr(f"{sleep} IS NOT NULL")).otherwise(True))


def next_page(entries: int, size: int, most: int) -> int:
    """Return the number of entries of the next page: as many as have ``PAGE_BYTES`` if they are like those of the last page.

    It is at most four times as many, since the next entries may be larger.

    Args:
        entries: The number of entries of the last page.
        size: Their bytes.
        most: The largest result.

    """
    return min(max(PAGE_BYTES * entries // max(size, 1), 1), 4 * entries, most)


def entry_batch(identities: list[str], guards: list[int | None], bodies: list[str | None]) -> pa.RecordBatch:
    """Return a batch with the columns of ``ENTRY_SCHEMA``."""
    import pyarrow as pa

    columns = [pa.array(identities, pa.string()), pa.array(guards, pa.int64()), pa.array(bodies, pa.string())]
    return pa.RecordBatch.from_arrays(columns, [IDENTITY, "guard", BODY])
