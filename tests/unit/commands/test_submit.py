"""Following a request that another process carries out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cdf_replicator.commands.submit import wait_answered
from cdf_replicator.state import lease
from cdf_replicator.state.command_queue import Command, CommandStatus, accept, enqueue, write_status

if TYPE_CHECKING:
    from pathlib import Path


def test_it_ends_when_all_is_answered(tmp_path: Path):
    asked = [Command("replay", "orders_search", 3), Command("replay", "orders_cache", 3)]
    write_status(tmp_path, asked[0].id, CommandStatus("done"))
    write_status(tmp_path, asked[1].id, CommandStatus("failed", "out of range"))

    assert wait_answered(tmp_path, lease.holder(tmp_path), tmp_path, asked) == 0


def test_it_ends_when_the_process_that_took_the_request_has_gone(tmp_path: Path):
    held = lease.Lease.acquire(tmp_path, url="http://127.0.0.1:9102")
    holder = lease.holder(tmp_path)
    request = Command("resync", "orders_search")
    enqueue(tmp_path, request)
    accept(tmp_path, request)
    held.release()

    assert wait_answered(tmp_path, holder, tmp_path, [request]) == 75
