"""Write the archive of classes with which Spark's JVM starts faster (cdf_replicator/spark/class_archive.py).

    python -m deploy.local.class_archive

The JVM writes at its exit which classes it loaded, so the program streams a small change feed first.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from cdf_replicator.settings.models import Spark
from cdf_replicator.spark import java, session
from cdf_replicator.spark.class_archive import ARCHIVE, CLASS_PATH, class_path

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

EXIT_SECONDS = 300


class ArchiveError(RuntimeError):
    """No archive was written. The text gives the reason."""


def write(archive: Path) -> None:
    """Write the archive, and replace an earlier one only at the end: a JVM crashes on a file that is cut off."""
    require_base_archive(java.java_home() / "bin" / "java")
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=archive.parent) as folder:
        new = Path(folder, archive.name)
        options = f'-XX:ArchiveClassesAtExit="{new}" -Xlog:cds*=off -XX:TieredStopAtLevel=1 -XX:+UseSerialGC'
        conf = {"spark.driver.extraJavaOptions": options, CLASS_PATH: class_path()}
        spark = session.start(Spark(master="local[2]", conf=conf))
        stream(spark, Path(folder))
        end(spark)
        if not new.is_file():
            raise ArchiveError("the JVM wrote none")
        new.replace(archive)


def require_base_archive(program: Path) -> None:
    """Write Java's archive of its own classes where an installation has none. Raise ArchiveError."""
    version = subprocess.run([program, "-version"], capture_output=True, text=True, check=True)
    if "sharing" in version.stderr:
        return
    dumped = subprocess.run([program, "-Xshare:dump"], capture_output=True, text=True, check=False)
    if dumped.returncode != 0:
        raise ArchiveError(f"{program} -Xshare:dump: {' '.join((dumped.stdout + dumped.stderr).split())[-200:]}")


def stream(spark: SparkSession, folder: Path) -> None:
    """Stream the change feed of a Delta table into another by an append and a MERGE, through Arrow and back."""
    source, log, copy = (f"delta.`{folder / name}`" for name in ("source", "log", "copy"))
    spark.sql(
        f"CREATE TABLE {source} (id BIGINT, at TIMESTAMP, price DECIMAL(9, 2), tags ARRAY<STRING>, place STRUCT<x: DOUBLE>) "
        "USING delta TBLPROPERTIES (delta.enableChangeDataFeed = true)"
    )
    spark.sql(f"CREATE TABLE {copy} (id BIGINT, text STRING) USING delta")
    spark.sql(f"INSERT INTO {source} SELECT id, now(), 1.5, array('a'), struct(0.5) FROM range(20)")
    spark.sql(f"UPDATE {source} SET price = 2 WHERE id < 5")
    spark.sql(f"DELETE FROM {source} WHERE id > 15")

    def write_batch(changes: DataFrame, _batch: int) -> None:
        changes.persist()
        changes.createOrReplaceTempView("changes")
        last = changes.sparkSession.sql(
            "SELECT id, to_json(struct(*)) AS text FROM (SELECT *, row_number() OVER "
            "(PARTITION BY id ORDER BY _commit_version DESC) AS nth FROM changes) WHERE nth = 1"
        )
        last.repartition(2).mapInArrow(unchanged, last.schema).createOrReplaceTempView("last")
        last.sparkSession.sql(
            f"MERGE INTO {copy} c USING last l ON c.id = l.id WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
        )
        changes.write.format("delta").mode("append").save(str(folder / "log"))
        changes.unpersist()

    feed = spark.readStream.format("delta").option("readChangeFeed", "true").option("startingVersion", 0)
    query = feed.load(str(folder / "source")).writeStream.foreachBatch(write_batch)
    query.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start().awaitTermination()
    spark.sql(f"SELECT count(*), max(_commit_version) FROM {log}").toArrow()


def unchanged(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return batches


def end(spark: SparkSession) -> None:
    """End the JVM and wait for it, since it writes the archive at its exit."""
    gateway = spark.sparkContext._gateway  # noqa: SLF001 - pyspark has no other access to the JVM process
    spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(EXIT_SECONDS)


if __name__ == "__main__":
    try:
        write(ARCHIVE)
    except (ArchiveError, OSError) as error:
        sys.exit(f"No class-data archive was written, so that Spark starts slower: {error}")
