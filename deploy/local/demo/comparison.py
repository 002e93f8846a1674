"""Compare every sink with the source table in Spark: whole rows, key by key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import orjson
from elasticsearch import Elasticsearch
from elasticsearch.helpers import scan
from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812 - Spark's documentation uses this name
from pyspark.sql.types import StringType, StructField, StructType
from redis import Redis

from deploy.local.demo.board import TABLE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import Column, DataFrame, SparkSession

PAGE = 5000


@dataclass(frozen=True)
class Verdict:
    """The rows in a sink, the keys that differ or that one side lacks, and up to three of them with both rows."""

    rows: int
    differing: int
    examples: list[str]


@dataclass(frozen=True)
class Changes:
    """Rows of the change feed by change type, and the number of rows that only the feed or the audit table has."""

    feed: dict[str, int]
    differing: int


class Comparison:
    """Compares the table at `source` with its sinks. Stores the rows of the servers in `folder`."""

    def __init__(self, spark: SparkSession, folder: Path, source: Path, audit: Path) -> None:
        self._spark = spark
        self._folder = folder
        self._source = source
        table = spark.read.format("delta").load(str(source))
        self._row = F.struct(*sorted(table.columns)).alias("row")
        self._expected = table.select(_key_text(), self._row).cache()
        self._audit = spark.read.format("delta").load(str(audit)).cache()

    def source_rows(self) -> int:
        return self._expected.count()

    def elasticsearch(self, url: str) -> Verdict:
        return self._verdict(self._documents(_elasticsearch_lines(url), "documents.json"))

    def redis(self, url: str) -> Verdict:
        return self._verdict(self._documents(_redis_lines(url), "entries.json"))

    def audit(self) -> Verdict:
        """Fold the audit table to the newest change of each key; an upsert wins over a delete of the same version."""
        deletes = F.col("change_type").isin("delete", "update_preimage")
        newest = Window.partitionBy("key").orderBy(F.desc("commit_version"), deletes)
        changes = self._audit.withColumn("key", _key_text()).withColumn("place", F.row_number().over(newest))
        return self._verdict(changes.where((F.col("place") == 1) & ~deletes).select("key", self._row))

    def changes(self) -> Changes:
        """Compare the audit table with the change feed, as multisets of whole rows."""
        feed = (
            self._spark.read.format("delta")
            .options(readChangeFeed="true", startingVersion="1")
            .load(str(self._source))
            .withColumnsRenamed({"_change_type": "change_type", "_commit_version": "commit_version"})
        )
        frames = (self._audit.where("change_type <> 'snapshot'"), feed)
        ours, theirs = (frame.select("change_type", "commit_version", self._row).cache() for frame in frames)
        differing = ours.exceptAll(theirs).count() + theirs.exceptAll(ours).count()
        return Changes({row[0]: row[1] for row in theirs.groupBy("change_type").count().collect()}, differing)

    def _documents(self, lines: Iterator[bytes], name: str) -> DataFrame:
        file = self._folder / name
        with file.open("wb") as pages:
            pages.writelines(lines)
        row_type = self._expected.schema["row"].dataType
        schema = StructType([StructField("key", StringType()), StructField("row", row_type)])
        return self._spark.read.schema(schema).json(str(file))

    def _verdict(self, found: DataFrame) -> Verdict:
        found = found.cache()
        both = self._expected.alias("expected").join(found.alias("found"), "key", "full_outer")
        differing = both.where(~F.col("expected.row").eqNullSafe(F.col("found.row"))).cache()
        rows = differing.select("key", F.to_json("expected.row"), F.to_json("found.row")).take(3)
        examples = [f"{key}: source {expected}, sink {row}" for key, expected, row in rows]
        verdict = Verdict(found.count(), differing.count(), examples)
        found.unpersist()
        return verdict


def _elasticsearch_lines(url: str) -> Iterator[bytes]:
    with Elasticsearch(url) as client:
        client.indices.refresh(index=TABLE)
        for hit in scan(client, index=TABLE, size=PAGE):
            yield orjson.dumps({"key": hit["_id"], "row": hit["_source"]}) + b"\n"


def _redis_lines(url: str) -> Iterator[bytes]:
    with Redis.from_url(url) as client:
        keys = list(set(client.scan_iter(f"{TABLE}:*", PAGE)))  # SCAN may return a key twice
        for start in range(0, len(keys), PAGE):
            page = keys[start : start + PAGE]
            for key, entry in zip(page, client.mget(page), strict=True):
                yield b'{"key":' + orjson.dumps(key.decode().removeprefix(f"{TABLE}:")) + b',"row":' + entry + b"}\n"


def _key_text() -> Column:
    """Return the key of a row in the form that the service documents: values as text, escaped, joined by colons."""
    hour = F.date_format("time_hour", "yyyy-MM-dd'T'HH'%3A'mm'%3A'ss.SSSSSS'Z'")
    return F.concat_ws(":", hour, "carrier", F.col("flight").cast("string")).alias("key")
