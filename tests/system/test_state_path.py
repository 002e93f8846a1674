"""A state path is full, read-only or lost: no change is lost, and the service continues after the repair."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

import httpx
import pytest

from tests.support.reading import entries
from tests.support.service import Service, command, environment
from tests.support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from deploy.local.servers import Redis
    from tests.support.source import Source

ROUTES = ("orders_audit", "orders_cache")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("state_path")


@pytest.fixture(scope="module")
def state(folder: Path) -> Iterator[Path]:
    """Return a separate file system of eight megabytes."""
    state = folder / "state"
    state.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", state], check=True)
    yield state
    subprocess.run(["umount", "--lazy", state], check=True)


@pytest.fixture(scope="module")
def orders(folder: Path, new_source: Callable[..., Source]) -> Source:
    return new_source(folder, "orders")


@pytest.fixture(scope="module")
def started(folder: Path, state: Path, orders: Source, redis_server: Redis) -> Iterator[Service]:
    given = environment(
        folder,
        STATE_PATH=state,
        TRIGGER_SECONDS=0.2,
        TABLES__ORDERS__PATH=orders.path,
        TABLES__ORDERS__KEYS="id",
        TABLES__ORDERS__SINKS="audit,cache",
        TABLES__ORDERS__INCLUDE_PREIMAGES=True,
        SINKS__AUDIT__TYPE="delta_audit",
        SINKS__AUDIT__PATH=folder / "audit",
        SINKS__CACHE__TYPE="redis",
        SINKS__CACHE__URL=redis_server.url,
    )
    with Service(given).started() as started:
        yield started


@pytest.fixture
def service(started: Service, orders: Source) -> Service:
    """The one service of the module, started again if it ended, once it is ready and has delivered the table."""
    if not started.running:
        started.restart()
    delivered(started, orders.version)
    until(lambda: not in_trouble(started), 120, started.log.read_text)
    return started


def delivered(service: Service, version: int) -> None:
    for route in ROUTES:
        service.wait_delivered(route, version)


def in_trouble(service: Service) -> bool:
    try:
        return not service.running or service.get("/readyz").status_code == 503
    except httpx.TransportError:  # it ends, or answers too late
        return True


def recovered(service: Service, orders: Source, folder: Path, redis_server: Redis) -> None:
    """Wait until the service continues, by itself or after a restart as by its platform, and compare."""
    if not service.running:
        service.restart()
    delivered(service, orders.insert(f"({100 + orders.version}, 'after', 1)"))
    assert entries(redis_server.url, "orders:") == orders.rows
    assert orders.folded(folder / "audit" / "orders") == orders.rows


def test_service_recovers_from_a_full_state_path(
    service: Service, state: Path, orders: Source, folder: Path, redis_server: Redis
):
    filled = subprocess.run(
        ["dd", "if=/dev/zero", f"of={state / 'ballast'}", "bs=4k"], capture_output=True, check=False
    )
    assert b"No space left" in filled.stderr
    orders.change("UPDATE {} SET name = 'full' WHERE id < 5")
    until(lambda: in_trouble(service), 120, service.log.read_text)
    (state / "ballast").unlink()
    recovered(service, orders, folder, redis_server)


def test_service_recovers_from_a_read_only_state_path(
    service: Service, state: Path, orders: Source, folder: Path, redis_server: Redis
):
    # A mount over it, since the lease's open file keeps the one below writable.
    subprocess.run(["mount", "--bind", state, state], check=True)
    subprocess.run(["mount", "-o", "remount,bind,ro", state], check=True)
    orders.change("UPDATE {} SET name = 'read' WHERE id < 5")
    until(lambda: in_trouble(service), 120, service.log.read_text)
    subprocess.run(["umount", state], check=True)
    recovered(service, orders, folder, redis_server)


def test_service_recovers_from_a_missing_state_path(
    service: Service, state: Path, orders: Source, folder: Path, redis_server: Redis
):
    """A target that seems to belong to another state path is not changed until an operator runs a resync."""
    service.end()
    for part in state.iterdir():
        shutil.rmtree(part) if part.is_dir() else part.unlink()
    service.restart()
    for route in ROUTES:
        service.wait_state(route, "halted")
        error = service.route(route)["last_error"]
        assert error["condition"] == "target_claimed"
        assert f"resync {route}" in error["next_step"]
        assert command(service.given, "resync", route, "--yes").code == 0
    recovered(service, orders, folder, redis_server)
