"""Following a request that another process carries out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cdf_replicator.commands.submit import wait_answered
from cdf_replicator.state import lease
from cdf_replicator.state.command_queue import Progress, Request, answer, submit, take

if TYPE_CHECKING:
    from pathlib import Path


def test_it_ends_when_all_is_answered(tmp_path: Path):
    asked = [Request("replay", "orders_search", 3), Request("replay", "orders_cache", 3)]
    answer(tmp_path, asked[0].id, Progress("done"))
    answer(tmp_path, asked[1].id, Progress("failed", "out of range"))

    assert wait_answered(tmp_path, lease.holder(tmp_path), tmp_path, asked) == 0


def test_it_ends_when_the_process_that_took_the_request_has_gone(tmp_path: Path):
    held = lease.Lease.acquire(tmp_path, url="http://127.0.0.1:9102")
    holder = lease.holder(tmp_path)
    request = Request("resync", "orders_search")
    submit(tmp_path, request)
    take(tmp_path, request)
    held.release()

    assert wait_answered(tmp_path, holder, tmp_path, [request]) == 75
