"""Close the connection over which a query's thread in the JVM calls this process.

py4j opens a connection per thread and closes it only when the process ends. Each run of a query would leak a socket and a
thread, and a route whose sink is away restarts its query a hundred times per hour.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from py4j.java_gateway import JavaObject

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession


def callback_closer(spark: SparkSession) -> Callable[[], None]:
    """Return a function that closes the connection of the present call. The caller calls it after the query has ended."""
    gateway = spark.sparkContext._gateway  # noqa: SLF001 - there is no public way
    assert gateway is not None
    client = JavaObject("GATEWAY_SERVER", gateway._gateway_client).getCallbackClient()  # noqa: SLF001
    connection = client.getPerThreadConnection()

    def hang_up() -> None:
        connection.shutdown()
        client.connectionStopped(connection)  # forget it

    return hang_up
