"""Start Spark's Python workers from a process that has imported their modules, so that each start costs half as much.

Spark's JVM runs this module in place of ``pyspark.daemon``, and it forks a worker for each task without an idle one. Spark ends workers that
are idle for a minute. pyarrow and numpy start threads when they are imported, and so are left to the workers: a process with threads must
not fork.
"""

import gc

import pyspark.sql.functions
import pyspark.worker
import tenacity
from pyspark.daemon import manager

import connectors

__all__ = ["connectors", "manager", "pyspark", "tenacity"]

if __name__ == "__main__":
    gc.freeze()  # the workers share the memory of these modules as long as no collection writes to it
    manager()
