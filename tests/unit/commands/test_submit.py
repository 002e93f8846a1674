"""Following a request that another process carries out."""

from __future__ import annotations

import shutil
import signal
import threading
from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

from cdf_replicator.commands import submit
from cdf_replicator.commands.submit import wait_answered
from cdf_replicator.settings import load
from cdf_replicator.settings.loader import StateSettings
from cdf_replicator.settings.models import Log, Spark
from cdf_replicator.spark import SparkStartError
from cdf_replicator.state import lease
from cdf_replicator.state.command_queue import (
    Command,
    CommandStatus,
    accept,
    enqueue,
    pending,
    read_status,
    write_status,
)
from cdf_replicator.state.command_queue import answer as respond
from cdf_replicator.state.storage_path import LocalPath
from cdf_replicator.state.store import StateStore
from tests.support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from typing import Literal

    from cdf_replicator.state.command_queue import CommandKind

    State = Literal["done", "failed"]

GIVEN = {
    "CDF_TABLES__ORDERS__PATH": "/lake/orders",
    "CDF_TABLES__ORDERS__KEYS": "id",
    "CDF_TABLES__ORDERS__SINKS": "cache",
    "CDF_SINKS__CACHE__TYPE": "redis",
    "CDF_SINKS__CACHE__URL": "redis://cache:6379/0",
}


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


def test_reload_without_a_service_starts_none_and_creates_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    state_path = tmp_path / "state"
    with capture_logs() as logged:
        assert submit.reload(StateSettings(str(state_path), Spark(), Log()), dry_run=False) == 75
    assert logged[0]["event"] == "no service is running, so there is nothing to reload"
    assert (capsys.readouterr().out, state_path.exists()) == ("", False)


def test_command_that_only_writes_the_state_path_starts_no_executors(monkeypatch: pytest.MonkeyPatch):
    masters: list[str] = []

    def refuse(spark: Spark) -> None:
        masters.append(spark.master)
        raise SparkStartError("unavailable")

    monkeypatch.setattr("cdf_replicator.state.location.session.start", refuse)
    cluster = {"CDF_STATE_PATH": "s3a://lake/state", "CDF_SPARK__MASTER": "k8s://https://kubernetes.default.svc"}
    settings = load(GIVEN | cluster)
    assert submit.set_paused(settings, [Command("pause", "orders_cache")]) == 78
    own = StateSettings(settings.state_path, settings.spark, Log())
    assert submit.reload(own, dry_run=False) == 78
    assert masters == ["local[1]", "local[1]"]


def test_queue_that_is_not_writable_ends_every_command_with_the_next_step(tmp_path: Path):
    store = StateStore.open(LocalPath(tmp_path))
    held = lease.Lease.acquire(store.root)
    shutil.rmtree(tmp_path / "requests", ignore_errors=True)
    (tmp_path / "requests").write_text("")
    settings = load({**GIVEN, "CDF_STATE_PATH": str(tmp_path)})
    try:
        with capture_logs() as logged:
            assert submit.reload(StateSettings(str(tmp_path), Spark(), Log()), dry_run=False) == 75
            assert submit.set_paused(settings, [Command("pause", "orders_cache")]) == 75
    finally:
        held.release()
    assert [entry["event"] for entry in logged] == ["CDF_STATE_PATH can't be used"] * 2
    assert all(entry["next_step"].startswith("Repeat the command") for entry in logged)


def test_state_path_of_another_format_ends_a_command(tmp_path: Path):
    StateStore.open(LocalPath(tmp_path))
    (tmp_path / "format.json").write_text('{"format": 99}')
    with capture_logs() as logged:
        settings = load({**GIVEN, "CDF_STATE_PATH": str(tmp_path)})
        assert submit.set_paused(settings, [Command("pause", "orders_cache")]) == 78
    assert "has state format 99" in logged[0]["event"]


@pytest.mark.parametrize(
    ("answer", "code", "output", "log"),
    [
        (CommandStatus("done", "orders_search  restart", 1.0), 0, "orders_search  restart\n", ""),
        (CommandStatus("failed", "configuration: 2 problems", exit_code=78), 78, "", "configuration: 2 problems\n"),
        (CommandStatus("failed", "run --once"), 1, "", "run --once\n"),
    ],
)
def test_reload_prints_the_answer_of_the_service(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], answer: CommandStatus, code: int, output: str, log: str
):
    store = StateStore.open(LocalPath(tmp_path))
    held = lease.Lease.acquire(store.root)
    found: list[Command] = []

    def execute() -> None:
        until(lambda: found.extend(pending(store.requests)) or found, 30)
        respond(store.requests, found[0].id, answer)

    service = threading.Thread(target=execute)
    service.start()
    try:
        assert submit.reload(StateSettings(str(tmp_path), Spark(), Log()), dry_run=True) == code
    finally:
        service.join()
        held.release()
    assert [(command.kind, command.dry_run) for command in found] == [("reload", True)]
    assert capsys.readouterr() == (output, log)
    assert list((tmp_path / "requests").iterdir()) == []


def test_command_that_waits_for_the_service_has_the_handlers_of_its_caller(tmp_path: Path):
    """A run has installed its own, and Ctrl-C would only set its flag."""
    store = StateStore.open(LocalPath(tmp_path))
    held = lease.Lease.acquire(store.root)
    settings = load({**GIVEN, "CDF_STATE_PATH": str(tmp_path)})
    command, waiting = Command("resync", "orders_cache"), threading.Event()
    before, found = [signal.getsignal(number) for number in submit.SIGNALS], []

    def execute() -> None:
        assert waiting.wait(30)
        found.extend(signal.getsignal(number) for number in submit.SIGNALS)
        accept(store.requests, command)
        respond(store.requests, command.id, CommandStatus("done", "", 1.0))

    def waits(*arguments: object) -> int:
        waiting.set()
        return wait_answered(*arguments)

    service = threading.Thread(target=execute)
    service.start()
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(submit, "wait_answered", waits)
            assert submit.execute(settings, [command], "", yes=True) == 0
    finally:
        service.join()
        held.release()
    assert found == before


@pytest.mark.parametrize(("accepted", "kept"), [(True, True), (False, False)])
def test_command_that_an_ended_service_has_accepted_stays_in_the_queue(tmp_path: Path, accepted: bool, kept: bool):
    store = StateStore.open(LocalPath(tmp_path))
    held = lease.Lease.acquire(store.root)
    settings = load({**GIVEN, "CDF_STATE_PATH": str(tmp_path)})
    command = Command("resume", "orders_cache")

    def end() -> None:
        until(lambda: pending(store.requests), 30)
        if accepted:
            accept(store.requests, command)
        held.release()

    service = threading.Thread(target=end)
    service.start()
    try:
        with capture_logs() as logged:
            assert submit.set_paused(settings, [command]) == 75
    finally:
        service.join()
    why = "the service continues it after a restart" if accepted else "no service accepted it; repeat the command"
    assert why in logged[-1]["why"]
    assert pending(store.requests) == ([command] if kept else [])


@pytest.mark.parametrize(("kind", "older"), [("pause", "resume"), ("resume", "pause")])
def test_older_command_in_the_queue_does_not_undo_a_pause(tmp_path: Path, kind: CommandKind, older: CommandKind):
    store = StateStore.open(LocalPath(tmp_path))
    settings = load({**GIVEN, "CDF_STATE_PATH": str(tmp_path)})
    store.set_paused("orders_cache", paused=older == "pause")
    former = Command(older, "orders_cache")
    others = [
        Command(older, "stock_cache"),
        Command("resync", "orders_cache"),
        Command(older, "orders_cache", at=2**40),
    ]
    for command in (former, *others):
        enqueue(store.requests, command)
    accept(store.requests, former)
    assert submit.set_paused(settings, [Command(kind, "orders_cache")]) == 0
    assert pending(store.requests) == others
    assert read_status(store.requests, former.id) == CommandStatus("failed", f"a later {kind} took its place")
    assert store.is_paused("orders_cache") is (kind == "pause")


@pytest.mark.parametrize(
    ("answers", "stream", "code"),
    [
        (["done", "done"], 75, 0),
        (["done", "done"], 1, 0),
        (["done", "failed"], 75, 75),
        (["done", "failed"], 0, 1),
        (["done", None], 78, 78),
        (["done", None], 0, 1),
    ],
)
def test_exit_code_is_of_the_commands_and_not_of_the_stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answers: Sequence[State | None], stream: int, code: int
):
    class Alone:
        def __init__(self, *_: object, **__: object) -> None:
            self.requests = StateStore(LocalPath(tmp_path)).requests

        def run(self) -> int:
            for command, answer in zip(pending(self.requests), answers, strict=True):
                if answer is not None:
                    respond(self.requests, command.id, CommandStatus(answer, "of the command"))
            return stream

    monkeypatch.setattr("cdf_replicator.runtime.supervisor.Supervisor", Alone)
    settings = load(
        {
            **GIVEN,
            "CDF_STATE_PATH": str(tmp_path),
            "CDF_TABLES__STOCK__PATH": "/lake/stock",
            "CDF_TABLES__STOCK__KEYS": "id",
            "CDF_TABLES__STOCK__SINKS": "cache",
        }
    )
    commands = [Command("discard", "orders_cache"), Command("discard", "stock_cache")]
    assert submit.execute(settings, commands, "", yes=True) == code
    assert list((tmp_path / "requests").iterdir()) == []
