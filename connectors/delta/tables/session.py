"""Get the Spark sessions of the Delta sinks: the shared session, and copies with settings for one write."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

_CONCURRENT_WRITERS: Final = "spark.sql.maxConcurrentOutputFileWriters"


def session() -> SparkSession:
    """Return the process's session. ``getOrCreate`` alone would send its options to the JVM at each call."""
    from pyspark.sql import SparkSession

    return SparkSession._instantiatedSession or SparkSession.builder.getOrCreate()


def private_session(spark: SparkSession) -> SparkSession:
    """Return a copy of a session with separate settings and views, since a bootstrap's frame belongs to the shared session."""
    return type(spark)(spark.sparkContext, spark._jsparkSession.cloneSession())


def txn_session(spark: SparkSession, app: str, version: int) -> SparkSession:
    """Return a session for one MERGE, DELETE or UPDATE, which the table records as this transaction."""
    private = private_session(spark)
    private.conf.set("spark.databricks.delta.write.txnAppId", app)
    private.conf.set("spark.databricks.delta.write.txnVersion", str(version))
    return private


@contextmanager
def parallel_writers(spark: SparkSession) -> Iterator[None]:
    """Let each task write to two partitions at once, so that Spark sorts only the rows of further partitions."""
    before = spark.conf.get(_CONCURRENT_WRITERS) or "0"
    spark.conf.set(_CONCURRENT_WRITERS, "2")
    try:
        yield
    finally:
        spark.conf.set(_CONCURRENT_WRITERS, before)
