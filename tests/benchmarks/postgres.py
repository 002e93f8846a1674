"""PostgreSQL: ours, a bare COPY of prebuilt lines, Spark's own JDBC writer, and ``executemany`` in foreachPartition.

The primary key is made after the rows, except for ``executemany``, whose upserts need it.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import psycopg
from psycopg.sql import SQL, Identifier

from connectors.postgres.target import columns
from connectors.postgres.writer import body_of
from tests.benchmarks.arm import Arm, Contest
from tests.benchmarks.ours import TABLE, OurRoute
from tests.benchmarks.works import DELETED, newest
from tests.support.postgres import emptied

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pyspark.sql import Row, SparkSession

    from deploy.local.servers import Postgres
    from tests.benchmarks.works import Work

CHUNK = 5000
SENDERS = 2
SAMPLE = 200


def contest(spark: SparkSession, work: Work, server: Postgres, jvm: int) -> Contest:
    """The bare COPY and Spark's writer take part in a bootstrap only, since they neither update nor delete."""
    route = OurRoute(spark, work, {"CDF_SINKS__SINK__TYPE": "postgres", "CDF_SINKS__SINK__URL": server.url})

    def empty() -> None:
        route.sink.close()
        emptied(server)
        route.prepare()

    def keyed() -> None:
        empty()
        if work.versions is None:
            route.save_loaded()

    def many() -> int:
        write = _many(server.url, work.keys)
        return work.read(spark, lambda frame: newest(frame, work.keys).foreachPartition(write))

    arms = [Arm("ours", route.deliver, [jvm], empty, route.sent)]
    if work.versions is None:
        arms.append(_bare(route, server.url, work.rows, empty))
        arms.append(Arm("Spark's JDBC append", lambda: _jdbc(spark, work, route, server.port), [jvm], empty))
    arms.append(Arm("executemany", many, [jvm], keyed))
    sample = newest(work.frame(spark), work.keys).limit(SAMPLE).collect()

    def check(arm: Arm) -> None:
        keys = SQL(" AND ").join(SQL("{} = %s").format(Identifier(key)) for key in work.keys)
        query = SQL("SELECT FROM {} WHERE {}").format(Identifier(TABLE), keys)
        with psycopg.connect(server.url) as connection:
            for row in sample:
                there = connection.execute(query, [row[key] for key in work.keys]).rowcount == 1
                if there == row[DELETED]:
                    raise AssertionError(f"{arm.name} left {row} {'there' if there else 'out'}")

    return Contest(f"postgres {work.name}", work.what, arms, check)


def _bare(route: OurRoute, url: str, rows: int, before: Callable[[], None]) -> Arm:
    lines: list[tuple[list[str], memoryview]] = []

    def run() -> int:
        if not lines:
            lines.extend(_lines(route))
        with ThreadPoolExecutor(SENDERS) as senders:
            list(senders.map(lambda number: _copy(url, lines[number::SENDERS]), range(SENDERS)))
        route.save_loaded()  # makes the primary key
        return rows

    return Arm("bare COPY", run, [], before)


def _jdbc(spark: SparkSession, work: Work, route: OurRoute, port: int) -> int:
    """Tuned: several rows in a statement, as many in a batch as ours has in a chunk."""
    url = f"jdbc:postgresql://127.0.0.1:{port}/postgres?user=cdf&reWriteBatchedInserts=true"
    settings = {"driver": "org.postgresql.Driver", "batchsize": str(CHUNK)}
    work.read(spark, lambda frame: frame.write.jdbc(url, TABLE, mode="append", properties=settings))
    route.save_loaded()
    return work.rows


def _lines(route: OurRoute) -> Iterator[tuple[list[str], memoryview]]:
    for batch in route.rendered().to_batches(CHUNK):
        yield json.loads(batch.schema.names[-1]), body_of(batch)


def _copy(url: str, chunks: Sequence[tuple[list[str], memoryview]]) -> None:
    """The limit: nothing to render, no guard, one transaction for each chunk as ours."""
    with psycopg.connect(url, autocommit=True) as connection:
        for names, body in chunks:
            query = SQL("COPY {} ({}) FROM STDIN").format(Identifier(TABLE), columns(names))
            with connection.cursor() as cursor, cursor.copy(query) as copy:
                copy.write(body)


def _many(url: str, keys: Sequence[str]) -> Callable[[Iterator[Row]], None]:
    """Return a typical custom writer: Python objects, ``executemany`` of upserts and deletes, without a guard."""

    def write(rows: Iterator[Row]) -> None:
        from itertools import islice

        import psycopg
        from psycopg.sql import SQL, Identifier

        def listed(template: str, names: Sequence[str], by: str) -> object:
            return SQL(by).join(SQL(template).format(Identifier(name)) for name in names)

        with psycopg.connect(url) as connection, connection.cursor() as cursor:
            while chunk := list(islice(rows, CHUNK)):
                names = [name for name in chunk[0].asDict() if name != DELETED]
                upsert = SQL("INSERT INTO {} ({}) VALUES ({}) ON CONFLICT ({}) DO UPDATE SET {}").format(
                    Identifier(TABLE),
                    listed("{}", names, ", "),
                    SQL(", ").join([SQL("%s")] * len(names)),
                    listed("{}", keys, ", "),
                    listed("{0} = excluded.{0}", names, ", "),
                )
                delete = SQL("DELETE FROM {} WHERE {}").format(Identifier(TABLE), listed("{} = %s", keys, " AND "))
                cursor.executemany(upsert, [[row[name] for name in names] for row in chunk if not row[DELETED]])
                cursor.executemany(delete, [[row[key] for key in keys] for row in chunk if row[DELETED]])
                connection.commit()

    return write
