"""Start the JVM and reach what PySpark has no API for: Hadoop's file systems and callbacks."""

from cdf_replicator.spark.hadoop_path import RemotePath
from cdf_replicator.spark.java import JavaNotFoundError
from cdf_replicator.spark.session import SparkStartError, forget_tables, start, versions

__all__ = ["JavaNotFoundError", "RemotePath", "SparkStartError", "forget_tables", "start", "versions"]
