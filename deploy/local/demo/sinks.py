"""Read the sinks as any client does, and compare them with the source table in Spark: whole rows, key by key."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import elasticsearch
import httpx
import orjson
import psycopg
import redis
from elasticsearch.helpers import scan
from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812 - Spark's documentation uses this name
from pyspark.sql.types import StringType, StructField, StructType

from deploy.local.demo.board import TABLE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from pyspark.sql import Column, DataFrame, SparkSession

    from deploy.local.demo.board import Commit

PAGE = 5000
POLL_SECONDS = 0.02
PATIENCE_SECONDS = 60
UPDATED_AT = "%Y-%m-%dT%H:%M:%S.%fZ"
"""Format of a timestamp in a document or entry. Texts of this format sort by time."""


class Elasticsearch:
    def __init__(self, url: str) -> None:
        self._client = elasticsearch.Elasticsearch(url).options(ignore_status=404)

    def row(self, key: str) -> dict[str, Any] | None:
        return self._client.get(index=TABLE, id=key).get("_source")

    def rows(self) -> Iterator[tuple[str, dict[str, Any]]]:
        self._client.indices.refresh(index=TABLE)
        return ((hit["_id"], hit["_source"]) for hit in scan(self._client, index=TABLE, size=PAGE))


class OpenSearch:
    def __init__(self, url: str) -> None:
        self._client = httpx.Client(base_url=url, timeout=60, trust_env=False)

    def row(self, key: str) -> dict[str, Any] | None:
        return self._client.get(f"/{TABLE}/_doc/{quote(key, safe='')}").json().get("_source")

    def rows(self) -> Iterator[tuple[str, dict[str, Any]]]:
        self._client.post(f"/{TABLE}/_refresh").raise_for_status()
        page = self._client.post(f"/{TABLE}/_search?scroll=1m&size={PAGE}", json={"sort": ["_doc"]})
        while hits := page.raise_for_status().json()["hits"]["hits"]:
            yield from ((hit["_id"], hit["_source"]) for hit in hits)
            more = {"scroll": "1m", "scroll_id": page.json()["_scroll_id"]}
            page = self._client.post("/_search/scroll", json=more)


class Redis:
    def __init__(self, url: str) -> None:
        self._client = redis.Redis.from_url(url)

    def row(self, key: str) -> dict[str, Any] | None:
        return orjson.loads(self._client.get(f"{TABLE}:{key}") or b"null")

    def rows(self) -> Iterator[tuple[str, dict[str, Any]]]:
        keys = list(set(self._client.scan_iter(f"{TABLE}:*", PAGE)))  # SCAN may return a key twice
        for start in range(0, len(keys), PAGE):
            page = keys[start : start + PAGE]
            for key, entry in zip(page, self._client.mget(page), strict=True):
                yield key.decode().removeprefix(f"{TABLE}:"), orjson.loads(entry)


class Postgres:
    """Reads by the key columns. ``KEY`` is the key text of a row."""

    KEY = """to_char(time_hour AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24"%3A"MI"%3A"SS.US"Z"') || ':' || carrier || ':' || flight"""
    UPDATED_AT = """to_char(updated_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')"""

    def __init__(self, url: str) -> None:
        self._connection = psycopg.connect(url, autocommit=True)

    def row(self, key: str) -> dict[str, Any] | None:
        hour, carrier, flight = key.replace("%3A", "-").split(":")
        query = f"SELECT {self.UPDATED_AT} FROM {TABLE} WHERE (time_hour, carrier, flight) = (to_timestamp(%s), %s, %s)"
        at = datetime.strptime(hour, "%Y-%m-%dT%H-%M-%S.%fZ").replace(tzinfo=timezone.utc).timestamp()
        found = self._connection.execute(query, [at, carrier, int(flight)]).fetchone()
        return None if found is None else {"updated_at": found[0]}

    def rows(self) -> Iterator[tuple[str, dict[str, Any]]]:
        yield from self._connection.execute(f"SELECT {self.KEY}, to_jsonb({TABLE}) - '_cdf_guard' FROM {TABLE}")


Reader = Elasticsearch | OpenSearch | Redis | Postgres
READERS: dict[str, type[Reader]] = {"search": Elasticsearch, "os": OpenSearch, "cache": Redis, "db": Postgres}


def visible_seconds(readers: Mapping[str, Reader], commit: Commit) -> dict[str, float]:
    """Poll until every sink shows the row of a commit, or a newer one; return the seconds from the commit to that.

    A sink that does not show the row within `PATIENCE_SECONDS` is left out. The comparison then finds the missing row.
    """
    seconds: dict[str, float] = {}
    deadline = time.time() + PATIENCE_SECONDS
    while commit.key is not None and len(seconds) < len(readers) and time.time() < deadline:
        for name, reader in readers.items():
            row = None if name in seconds else reader.row(commit.key)
            if row is not None and row["updated_at"] >= commit.updated_at.strftime(UPDATED_AT):
                seconds[name] = time.time() - commit.committed_at
        time.sleep(POLL_SECONDS)
    return seconds


@dataclass(frozen=True)
class Result:
    """The rows in a sink, the keys that differ or that one side lacks, and up to three of them with both rows."""

    rows: int
    differing: int
    examples: list[str]


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

    def sink(self, name: str, reader: Reader) -> Result:
        file = self._folder / f"{name}.json"
        with file.open("wb") as lines:
            lines.writelines(orjson.dumps({"key": key, "row": row}) + b"\n" for key, row in reader.rows())
        row_type = self._expected.schema["row"].dataType
        schema = StructType([StructField("key", StringType()), StructField("row", row_type)])
        return self._compare(self._spark.read.schema(schema).json(str(file)))

    def audit(self) -> Result:
        """Fold the audit table to the newest change of each key; an upsert wins over a delete of the same version."""
        deletes = F.col("change_type").isin("delete", "update_preimage")
        newest = Window.partitionBy("key").orderBy(F.desc("commit_version"), deletes)
        changes = self._audit.withColumn("key", _key_text()).withColumn("place", F.row_number().over(newest))
        return self._compare(changes.where((F.col("place") == 1) & ~deletes).select("key", self._row))

    def changes(self) -> tuple[dict[str, int], int]:
        """Compare the audit table with the change feed, as multisets of whole rows.

        Returns the rows of the feed by change type, and the number of rows that only one of both has.
        """
        reader = self._spark.read.format("delta").options(readChangeFeed="true", startingVersion="1")
        names = {"_change_type": "change_type", "_commit_version": "commit_version"}
        frames = (
            self._audit.where("change_type <> 'snapshot'"),
            reader.load(str(self._source)).withColumnsRenamed(names),
        )
        ours, theirs = (frame.select(*names.values(), self._row).cache() for frame in frames)
        differing = ours.exceptAll(theirs).count() + theirs.exceptAll(ours).count()
        return {row[0]: row[1] for row in theirs.groupBy("change_type").count().collect()}, differing

    def _compare(self, found: DataFrame) -> Result:
        found = found.cache()
        both = self._expected.alias("expected").join(found.alias("found"), "key", "full_outer")
        differing = both.where(~F.col("expected.row").eqNullSafe(F.col("found.row"))).cache()
        rows = differing.select("key", F.to_json("expected.row"), F.to_json("found.row")).take(3)
        examples = [f"{key}: source {expected}, sink {row}" for key, expected, row in rows]
        result = Result(found.count(), differing.count(), examples)
        found.unpersist()
        return result


def _key_text() -> Column:
    """Return the key of a row in the form that the service documents: values as text, escaped, joined by colons."""
    hour = F.date_format("time_hour", "yyyy-MM-dd'T'HH'%3A'mm'%3A'ss.SSSSSS'Z'")
    return F.concat_ws(":", hour, "carrier", F.col("flight").cast("string")).alias("key")
