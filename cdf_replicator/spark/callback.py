"""The connection over which a query's thread in the JVM calls this process.

py4j opens one for each such thread, and closes none before the process ends: each run of a query would leave a socket and a
thread behind, and a sink that is away has its route begun anew a hundred times an hour.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from py4j.java_gateway import JavaObject

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession


def hanging_up(spark: SparkSession) -> Callable[[], None]:
    """Return what closes the connection over which this function was called. Not before the query has ended."""
    gateway = spark.sparkContext._gateway  # noqa: SLF001 - there is no public way
    assert gateway is not None
    client = JavaObject("GATEWAY_SERVER", gateway._gateway_client).getCallbackClient()  # noqa: SLF001
    connection = client.getPerThreadConnection()

    def hang_up() -> None:
        connection.shutdown()
        client.connectionStopped(connection)  # forget it

    return hang_up
