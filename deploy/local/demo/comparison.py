"""Compare every sink with the source table in Spark: whole rows, key by key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import orjson
from elasticsearch import Elasticsearch
from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812 - Spark's documentation uses this name
from pyspark.sql.types import StringType, StructField, StructType
from redis import Redis

from deploy.local.demo.service import TABLE
from deploy.local.demo.source import key_text

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

PAGE = 2000
CHANGE_TYPES = ("snapshot", "insert", "update_preimage", "update_postimage", "delete")


@dataclass(frozen=True)
class Verdict:
    """The result of a comparison.

    Attributes:
        rows: Number of rows in the sink.
        differing: Number of keys whose rows differ or that one side lacks.
        examples: Up to three of these keys, with both rows.
    """

    rows: int
    differing: int
    examples: list[str]


@dataclass(frozen=True)
class AuditCounts:
    """Rows by change type.

    Attributes:
        audit: Rows of the audit table.
        feed: Rows of the source table's change feed.
        unequal: Number of rows that only one of the two has.
    """

    audit: dict[str, int]
    feed: dict[str, int]
    unequal: int


class Comparison:
    """Compares the table at `source` with its sinks. Stores the rows of the servers in `folder`."""

    def __init__(self, spark: SparkSession, folder: Path, source: Path, audit: Path) -> None:
        self._spark = spark
        self._folder = folder
        self._source = source
        table = spark.read.format("delta").load(str(source))
        self._columns = sorted(table.columns)
        self._row_type = table.select(self._row()).schema["row"].dataType
        self._expected = table.select(key_text().alias("key"), self._row()).cache()
        self._audit = spark.read.format("delta").load(str(audit)).cache()

    def source_rows(self) -> int:
        return self._expected.count()

    def elasticsearch(self, url: str) -> Verdict:
        return self._judged(self._documents(_elasticsearch_lines(url), "documents.json"))

    def redis(self, url: str) -> Verdict:
        return self._judged(self._documents(_redis_lines(url), "entries.json"))

    def audit(self) -> Verdict:
        """Fold the audit table to the newest change of each key; an upsert wins over a delete of the same version."""
        deletes = F.col("change_type").isin("delete", "update_preimage")
        newest = Window.partitionBy("key").orderBy(F.desc("commit_version"), deletes)
        changes = self._audit.withColumn("key", key_text()).withColumn("place", F.row_number().over(newest))
        return self._judged(changes.where((F.col("place") == 1) & ~deletes).select("key", self._row()))

    def audit_counts(self) -> AuditCounts:
        """Count the changes of both sides, to show that the audit table holds each change once."""
        changes = self._audit.where("change_type <> 'snapshot'")
        first = self._audit.where("change_type = 'snapshot'").agg(F.max("commit_version")).first()
        assert first is not None
        feed = (
            self._spark.read.format("delta")
            .options(readChangeFeed="true", startingVersion=str(first[0] + 1))
            .load(str(self._source))
            .withColumnsRenamed({"_change_type": "change_type", "_commit_version": "commit_version"})
        )
        both = [frame.select("change_type", "commit_version", self._row()) for frame in (changes, feed)]
        return AuditCounts(
            audit=_by_type(self._audit),
            feed=_by_type(feed),
            unequal=both[0].exceptAll(both[1]).count() + both[1].exceptAll(both[0]).count(),
        )

    def _row(self):  # noqa: ANN202 - a column
        return F.struct(*self._columns).alias("row")

    def _documents(self, lines: Iterator[bytes], name: str) -> DataFrame:
        file = self._folder / name
        with file.open("wb") as pages:
            pages.writelines(lines)
        schema = StructType([StructField("key", StringType()), StructField("row", self._row_type)])
        return self._spark.read.schema(schema).json(str(file))

    def _judged(self, found: DataFrame) -> Verdict:
        found = found.cache()
        both = self._expected.alias("expected").join(found.alias("found"), "key", "full_outer")
        differing = both.where(~F.col("expected.row").eqNullSafe(F.col("found.row"))).cache()
        examples = [
            f"{row['key']}: source {row['expected']}, sink {row['found']}"
            for row in differing.select(
                "key",
                F.to_json("expected.row").alias("expected"),
                F.to_json("found.row").alias("found"),
            ).take(3)
        ]
        return Verdict(found.count(), differing.count(), examples)


def _elasticsearch_lines(url: str) -> Iterator[bytes]:
    with Elasticsearch(url) as client:
        client.indices.refresh(index=TABLE)
        pit = client.open_point_in_time(index=TABLE, keep_alive="1m")["id"]
        after = None
        while True:
            page = client.search(
                pit={"id": pit, "keep_alive": "1m"},
                sort=["_shard_doc"],
                size=PAGE,
                search_after=after,
                track_total_hits=False,
            )["hits"]["hits"]
            yield from (orjson.dumps({"key": hit["_id"], "row": hit["_source"]}) + b"\n" for hit in page)
            if not page:
                break
            after = page[-1]["sort"]
        client.close_point_in_time(id=pit)


def _redis_lines(url: str) -> Iterator[bytes]:
    with Redis.from_url(url) as client:
        cursor, seen = -1, set[bytes]()
        while cursor:
            cursor, keys = client.scan(max(cursor, 0), match=f"{TABLE}:*", count=PAGE)
            new = [key for key in keys if key not in seen]  # SCAN may return a key twice
            seen.update(new)
            for key, entry in zip(new, client.mget(new) if new else [], strict=True):
                yield b'{"key":' + orjson.dumps(key.decode().removeprefix(f"{TABLE}:")) + b',"row":' + entry + b"}\n"


def _by_type(changes: DataFrame) -> dict[str, int]:
    return {row["change_type"]: row["count"] for row in changes.groupBy("change_type").count().collect()}
