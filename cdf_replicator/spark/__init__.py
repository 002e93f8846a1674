"""Start Spark, and access Hadoop file systems and Java callbacks, for which PySpark has no API."""

from cdf_replicator.spark.hadoop_path import HadoopPath
from cdf_replicator.spark.java import SparkStartError
from cdf_replicator.spark.session import clear_delta_cache, start, versions

__all__ = ["HadoopPath", "SparkStartError", "clear_delta_cache", "start", "versions"]
