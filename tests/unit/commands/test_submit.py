"""Following a request that another process carries out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cdf_replicator.commands.submit import wait_answered
from cdf_replicator.state import lease
from cdf_replicator.state.command_queue import Command, CommandStatus, accept, enqueue, write_status
from cdf_replicator.state.storage_path import LocalPath

if TYPE_CHECKING:
    from pathlib import Path


def test_submission_ends_when_every_request_is_answered(tmp_path: Path):
    folder = LocalPath(tmp_path)
    commands = [Command("replay", "orders_search", 3), Command("replay", "orders_cache", 3)]
    write_status(folder, commands[0].id, CommandStatus("done"))
    write_status(folder, commands[1].id, CommandStatus("failed", "out of range"))

    assert wait_answered(folder, lease.holder(folder), folder, commands) == 0


def test_submission_ends_when_the_accepting_process_has_ended(tmp_path: Path):
    folder = LocalPath(tmp_path)
    held = lease.Lease.acquire(folder, url="http://127.0.0.1:9102")
    holder = lease.holder(folder)
    request = Command("resync", "orders_search")
    enqueue(folder, request)
    accept(folder, request)
    held.release()

    assert wait_answered(folder, holder, folder, [request]) == 75
