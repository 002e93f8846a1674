"""SIGKILL of the driver at each point of a micro-batch that matters: the batch is delivered again, and nothing differs.

Each test begins with the service that the test before it has started after its kill, or with the first one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import httpx
import pytest
from pyspark.sql import functions as F  # noqa: N812

from cdf_replicator.state.command_queue import Command, enqueue, read_status
from cdf_replicator.state.storage_path import LocalPath
from tests.chaos.killed_at import POINTS, Doomed
from tests.chaos.world import REFUSED_KEY, SINKS, world
from tests.support.waiting import PATIENCE_SECONDS, until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.chaos.world import World

SEED = 2


@pytest.fixture(scope="module")
def chaos(spark, tmp_path_factory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("points")
    with world(spark, folder, SEED, ("orders",), Doomed, TABLES__ORDERS__MAX_FILES_PER_TRIGGER=1) as made:
        made.wait_caught_up()
        yield made


def change(chaos: World) -> str:
    """Insert, update and delete rows; return the key of an inserted row that two servers reject."""
    t, first = f"delta.`{chaos.path('orders')}`", (chaos.version("orders") + 1) * 1000
    refused = first + 1
    tags = f"IF(id = {refused}, map({REFUSED_KEY}, 1), map('t', 1))"
    for begin in (first, first + 200):
        chaos.spark.sql(f"INSERT INTO {t} SELECT id, 'new', id, {tags} FROM range({begin}, {begin + 200})")
    chaos.spark.sql(f"UPDATE {t} SET amount = -1 WHERE id % 10 = 0")
    chaos.spark.sql(f"DELETE FROM {t} WHERE id % 10 = 7")
    return str(refused)


def recovered(chaos: World) -> None:
    chaos.begin()
    chaos.wait_caught_up()
    assert chaos.differences() == []


REPAIR = "after the repair's write"


@pytest.mark.parametrize("point", [point for point in POINTS if point != REPAIR])
def test_sinks_equal_the_table_after_a_kill_at_the_point(chaos: World, point: str):
    doomed = chaos.service
    assert isinstance(doomed, Doomed)
    before = chaos.version("orders")
    doomed.doom(point)
    refused = change(chaos)
    until(lambda: not doomed.running, PATIENCE_SECONDS, doomed.log.read_text)

    assert doomed.killed(point)
    opened = {sink for sink in SINKS if batches(chaos, sink, "offsets") > batches(chaos, sink, "commits")}
    assert opened, "a micro-batch has begun and not ended"
    if point == "after the audit append":
        assert "audit" in opened
        assert appended(chaos) > before
    if point == "after the dead-letter write":
        assert opened & {"search", "db"}
        assert refused in chaos.letters("orders")
    recovered(chaos)


@pytest.mark.parametrize("side", ["search", "cache", "db"])
def test_sinks_equal_the_table_after_a_kill_within_a_chunk(chaos: World, side: str):
    """The server has received a part of a request, and no client reads its response."""
    proxy = getattr(chaos, side)
    proxy.mode, proxy.stalled = "stall", 0
    change(chaos)
    until(lambda: proxy.stalled, PATIENCE_SECONDS, chaos.service.log.read_text)
    chaos.service.kill()
    proxy.mode = "pass"

    recovered(chaos)


def test_repair_is_answered_after_a_kill_in_the_middle(chaos: World):
    """The command stays in the queue until its answer, and is executed again."""
    change(chaos)
    chaos.wait_caught_up()
    taken = chaos.spark.read.format("delta").load(str(chaos.path("orders"))).where("id % 10 = 5").take(2)
    dropped, stale = (row["id"] for row in taken)
    index = f"{chaos.elasticsearch.url}/orders/_doc"
    httpx.delete(f"{index}/{dropped}?refresh=true").raise_for_status()
    httpx.post(f"{chaos.elasticsearch.url}/orders/_update/{stale}?refresh=true", json={"doc": {"amount": 5}})
    assert (len(chaos.differences()), [text.split(": ")[0] for text in chaos.verified()]) == (
        2,
        ["verify of orders_search"],
    )
    doomed = chaos.service
    assert isinstance(doomed, Doomed)
    doomed.doom(REPAIR)
    requests = LocalPath(chaos.folder / "state" / "requests")
    command = Command("repair", "orders_search", identities=(str(dropped), str(stale)))
    enqueue(requests, command)
    until(lambda: doomed.killed(REPAIR), PATIENCE_SECONDS, doomed.log.read_text)

    chaos.begin()
    until(lambda: read_status(requests, command.id).state != "running", PATIENCE_SECONDS, chaos.service.log.read_text)
    answer = read_status(requests, command.id)
    assert (answer.state, answer.message.split(" as of ")[0]) == ("done", "2 entries written")
    chaos.wait_caught_up()
    assert chaos.differences() + chaos.verified() == []


def batches(chaos: World, sink: str, log: str) -> int:
    """Return the newest micro-batch of a route in a log of Spark's checkpoint; -1 if there is none."""
    (checkpoint,) = (chaos.folder / "state" / "routes" / f"orders_{sink}" / "checkpoints").iterdir()
    return max((int(file.name) for file in (checkpoint / log).glob("[0-9]*")), default=-1)


def appended(chaos: World) -> int:
    """Return the newest version in the audit table."""
    audit = chaos.spark.read.format("delta").load(str(chaos.folder / "audit" / "orders"))
    return int(audit.select(F.max("commit_version")).collect()[0][0])
