"""A sink is down for a long time: its route keeps retrying, other routes deliver, and memory does not grow."""

from __future__ import annotations

import gc
import re
import threading

import psutil

from tests.support.waiting import until

MOST_BYTES = 300_000
"""Limit of the process's memory growth per restart."""
SLACK_BYTES = 17_000_000
"""Further growth that is no leak: the process keeps memory that it has freed."""
QUERY = re.compile(r" (\d+) +\d+ +[\w.]+\.MicroBatchExecution\b")
"""The line of a class histogram of the JVM that counts the streaming queries."""
READINGS = 5
RESTART_SECONDS = 30
"""The longest time of a restart on a busy machine."""


def restarts(runner):
    return runner._report._board.snapshot().routes[0].restarts


def queries(spark):
    """Count the streaming queries that the JVM still holds after a full collection, whether they run or not.

    A query that is not released keeps its session and about a megabyte. Bytes of the heap do not show it: a running
    stream holds a page of 16 MiB at one moment and none at the next. The method is called by reflection, since the class
    of the MBean server is not public.
    """
    jvm, new = spark._jvm, spark.sparkContext._gateway.new_array

    def array(kind, *values):
        made = new(kind, len(values))
        for position, value in enumerate(values):
            made[position] = value
        return made

    java = jvm.java.lang
    names = ("javax.management.ObjectName", "java.lang.String", "[Ljava.lang.Object;", "[Ljava.lang.String;")
    types = array(java.Class, *map(java.Class.forName, names))
    invoke = java.Class.forName("javax.management.MBeanServer").getMethod("invoke", types)
    arguments = array(
        java.Object,
        jvm.javax.management.ObjectName("com.sun.management:type=DiagnosticCommand"),
        "gcClassHistogram",
        array(java.Object, array(java.String)),
        array(java.String, "[Ljava.lang.String;"),
    )
    histogram = invoke.invoke(java.management.ManagementFactory.getPlatformMBeanServer(), arguments)
    return int(QUERY.search(histogram)[1])


def open_files():
    """Count the open files of this process and of its JVM."""
    process = psutil.Process()
    return sum(one.num_fds() for one in [process, *process.children()])


def used(spark):
    """Return the queries of the JVM, the bytes of this process, the open files of both, and the threads of this one.

    Spark's cleaner frees more in a thread of its own after a collection, and both routes hold files while they deliver,
    so that the lowest of several readings counts.
    """
    gc.collect()
    held, files = zip(*((queries(spark), open_files()) for _ in range(READINGS)), strict=True)
    return min(held), psutil.Process().memory_info().rss, min(files), threading.active_count()


def test_sink_outage_of_an_hour_costs_neither_memory_nor_other_routes_time(world, live, pytestconfig):
    """The first third of the restarts is warm-up. The service restarts twice a minute: 120 restarts are an hour."""
    many = pytestconfig.getoption("restarts")
    few = many // 3
    other = world.folder / "other"
    other.mkdir()
    world.environ |= {
        "CDF_TABLES__ORDERS__SINKS": "files,other",
        "CDF_SINKS__OTHER__TYPE": "picky",
        "CDF_SINKS__OTHER__PATH": str(other),
        "CDF_DELIVERY__RETRY_SECONDS": "0.05",
        "CDF_TRIGGER_SECONDS": "1",  # each trigger of the healthy route takes processor time
    }
    world.create(rows=["(1, 'a')"])
    dead, healthy = live("orders_files", "orders_other")
    until(lambda: "1" in world.delivered())
    world.trouble("away")

    found = []
    within = RESTART_SECONDS * (many - few) // 2
    measured = (few, many)
    for commits, wanted in enumerate((few // 2, few, (few + many) // 2, many), start=1):
        world.insert(f"({100 + wanted}, 'b')")
        until(lambda n=commits: len(list((other / "orders").glob("*.json"))) > n)
        until(lambda n=wanted: restarts(dead) >= n, within)
        if wanted in measured:
            found.append(used(world.spark))
    assert healthy.failure is None
    (held, resident, files, threads), (later_held, later_resident, later_files, later_threads) = found
    leak = (many - few) // 2  # a leak is one per restart at least; some files and threads appear late
    assert later_held - held <= leak, found
    assert later_resident - resident < (many - few) * MOST_BYTES + SLACK_BYTES, found
    assert later_files - files <= leak, found
    assert later_threads - threads <= leak, found

    world.trouble(None)
    expected = world.expected()
    until(lambda: world.delivered() == expected)
    assert dead.failure is None
