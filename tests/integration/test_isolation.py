"""A sink is down for a long time: its route keeps retrying, other routes deliver, and memory does not grow."""

from __future__ import annotations

import gc
import threading

import psutil

from tests.support.waiting import until

MOST_BYTES = 300_000
"""Limit of memory growth per restart. A query that is not released keeps a megabyte."""
PAGE_BYTES = 17_000_000
"""One page of Spark's memory, which is there or not."""
RESTART_SECONDS = 30
"""The longest time of a restart on a busy machine."""


def restarts(runner):
    return runner._report._board.snapshot().routes[0].restarts


def used(spark):
    """Bytes of the driver's Java heap and of this process, open files of both, threads of this one.

    A collection lets Spark's cleaner free more, in a thread of its own, so that the lowest of several readings counts.
    """
    heap, process = spark._jvm.java.lang.Runtime.getRuntime(), psutil.Process()
    held = []
    for _ in range(5):
        gc.collect()
        spark._jvm.java.lang.System.gc()
        held.append(heap.totalMemory() - heap.freeMemory())
    files = sum(one.num_fds() for one in [process, *process.children()])
    return min(held), process.memory_info().rss, files, threading.active_count()


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
    (heap, resident, files, threads), (later_heap, later_resident, later_files, later_threads) = found
    assert later_heap - heap < (many - few) * MOST_BYTES + PAGE_BYTES, found
    assert later_resident - resident < (many - few) * MOST_BYTES + PAGE_BYTES, found
    assert later_files - files < (many - few) // 2, found  # a leak is one per restart; some files open late
    assert later_threads - threads < (many - few) // 2, found

    world.trouble(None)
    expected = world.expected()
    until(lambda: world.delivered() == expected)
    assert dead.failure is None
