"""Start Spark, and access Hadoop file systems and Java callbacks, for which PySpark has no API."""

from cdf_replicator.spark.hadoop_path import RemotePath
from cdf_replicator.spark.java import JavaNotFoundError
from cdf_replicator.spark.session import SparkStartError, forget_tables, start, versions

__all__ = ["JavaNotFoundError", "RemotePath", "SparkStartError", "forget_tables", "start", "versions"]
