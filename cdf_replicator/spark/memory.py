"""Read the heap and the garbage collections of Spark's JVM from its management beans."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class JvmMemory:
    """The heap of the JVM in bytes, and its garbage collections since its start, with their duration in seconds."""

    heap_used: int = 0
    heap_max: int = 0
    collections: int = 0
    collection_seconds: float = 0.0


class JvmBeans:
    """The management beans of a JVM. They are kept, since a look-up costs more than a read."""

    def __init__(self, spark: SparkSession) -> None:
        jvm: Any = spark._jvm
        beans = getattr(jvm, "java.lang.management.ManagementFactory")
        self._memory = beans.getMemoryMXBean()
        self._collectors = list(beans.getGarbageCollectorMXBeans())

    def read(self) -> JvmMemory:
        heap = self._memory.getHeapMemoryUsage()
        return JvmMemory(
            heap_used=heap.getUsed(),
            heap_max=heap.getMax(),
            collections=sum(each.getCollectionCount() for each in self._collectors),
            collection_seconds=sum(each.getCollectionTime() for each in self._collectors) / 1000,
        )
