"""A state path whose store writes no file atomically: a reader may see the first bytes of a file, or none."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from cdf_replicator.commands.submit import wait_answered
from cdf_replicator.spark.hadoop_path import HadoopPath
from cdf_replicator.state import command_queue, lease
from cdf_replicator.state.command_queue import Command, CommandStatus

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def root(spark, tmp_path):
    return HadoopPath.at(spark, f"file:{tmp_path}")


def tear(file: Path, keep: int) -> None:
    """Leave the first bytes of a file, as a reader sees it during a write."""
    file.with_name(f".{file.name}.crc").unlink()
    file.write_bytes(file.read_bytes()[:keep])


@pytest.mark.parametrize("keep", [0, 20])
def test_request_that_is_being_written_is_not_refused(root, tmp_path, keep):
    whole, torn = Command("pause", "orders_audit", at=1.0), Command("resync", "orders_search", at=2.0)
    command_queue.enqueue(root, whole)
    command_queue.enqueue(root, torn)
    file = tmp_path / f"{torn.id}.request.json"
    (root / f".{file.name}.draft").write_text(file.read_text().rstrip("\n"))
    tear(file, keep)
    assert command_queue.pending(root) == [whole, torn], "the draft has the request"
    (tmp_path / f".{file.name}.draft").unlink()
    assert command_queue.pending(root) == [whole]
    assert command_queue.read_status(root, torn.id) is None


def test_heartbeat_that_is_being_written_does_not_end_a_command(root, tmp_path):
    held = lease.Lease.acquire(root)
    holder, request = lease.holder(root), Command("resync", "orders_search")
    command_queue.enqueue(root / "requests", request)
    tear(tmp_path / "leases" / f"{held.token:010d}.json", 10)
    assert lease.holder(root) == {}
    done = CommandStatus("done")
    for known in (holder, {}):
        answer = threading.Timer(1.0, command_queue.answer, (root / "requests", request.id, done))
        answer.start()
        assert wait_answered(root, known, root / "requests", [request]) == 0
        answer.join()
        command_queue.delete(root / "requests", request.id)
        held._file.heartbeat()
    held.release()
    assert wait_answered(root, holder, root / "requests", [request]) == 75
