"""Provide a status store with many routes in every state, as the page of a large service shows it."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final

from cdf_replicator.monitoring.status import Definition
from cdf_replicator.monitoring.status_store import StatusStore
from cdf_replicator.monitoring.totals import BatchStatus
from cdf_replicator.settings.effective import Setting
from tests.unit.boards import Clock

if TYPE_CHECKING:
    from datetime import datetime

    from cdf_replicator.monitoring.status import State

SINKS: Final = {"audit": "delta_audit", "search": "elasticsearch", "cache": "redis", "copy": "postgres"}
TABLES: Final = (
    *("orders", "items", "customers", "payments", "shipments", "invoices", "prices", "stock", "returns", "visits"),
    *("reviews", "coupons", "carts"),
)
STATES: Final[dict[int, State]] = {
    3: "halted",
    11: "halted",
    17: "stalled",
    22: "retrying",
    23: "retrying",
    24: "paused",
    30: "starting",
    31: "bootstrapping",
    32: "bootstrapping",
    40: "stopped",
}
"""State by the number of a route; the others run."""
WHY: Final = {
    "halted": (
        "Key columns id of table {table} do not identify a row: at version 16 there are several rows of key 5001 (2 rows).",
        "keys",
        "Correct the data. Then run: `cdf-replicator resync {route}`",
    ),
    "stalled": ("No version, micro-batch or task has completed for 600 s.", "stalled", "Check the sink and the log."),
    "retrying": (
        "Elasticsearch does not answer at http://search:9200: [Errno 111] Connection refused",
        "unreachable",
        "Start it, or correct its address. The route continues by itself.",
    ),
}


def crowd(routes: int = 50, batches: int = 60) -> StatusStore:
    """Return a store of routes that have delivered a micro-batch in each of the last ``batches`` minutes."""
    clock = Clock()
    board = StatusStore(clock)
    board.runtime(spark="4.2.0", delta="4.4.0", java="17")
    for sink, type_ in SINKS.items():
        board.add_sink(sink, type_, f"http://{sink}:9200")
        board.sink_up(sink)
    names = [named(number) for number in range(routes)]
    for number, (name, table, sink) in enumerate(names):
        _add(board, name, table, sink, number)
    board.set_settings(_settings(names))
    for minute in range(batches):
        if minute == batches - 3:
            for number, state in STATES.items():
                if number < routes:
                    _put_into(board, names[number][0], state)
        _pass_a_minute(board, clock, [name for name, _, _ in names], minute)
    for number in (5, 9):
        if number < routes:
            board.update(names[number][0], dead_letters=3 * number)
    return board


def _add(board: StatusStore, name: str, table: str, sink: str, number: int) -> None:
    board.add_route(name, table, sink, ("mapping",))
    board.state(name, "running")
    board.requests(name, [0.004] * 90 + [0.2] * 10, {"timeout": 2}, 4096)
    definition = Definition(
        f"s3a://lake/{table}",
        f"{sink} {table}",
        "append" if sink == "audit" else "upsert",
        ("id",),
        "status <> 'draft'",
        None,
    )
    board.update(
        name,
        definition=definition,
        checkpoint=f"/var/lib/cdf/routes/{name}/checkpoints/0",
        headroom_seconds=float(86_400 * 7 - 3600 * number),
        headroom_versions=1000,
        source_version=100,
        delivered_version=100 - number % 3,
    )


def _settings(names: list[tuple[str, str, str]]) -> list[Setting]:
    settings = [Setting(f"CDF_{n}", f"n{n}", "value", "default") for n in range(60)]
    for name, table, _ in names:
        settings += [
            Setting(f"CDF_TABLES__{table.upper()}__PATH", f"tables.{table}.path", f"s3a://lake/{table}", "environment"),
            Setting(f"CDF_ROUTES__{name.upper()}__FILTER", f"routes.{name}.filter", "status <> 'draft'", "environment"),
        ]
    return settings


def _pass_a_minute(board: StatusStore, clock: Clock, names: list[str], minute: int) -> None:
    """Have the routes that run deliver a micro-batch, and take the twelve samples of a minute."""
    states = {route.route: route.state for route in board.snapshot().routes}
    for sample in range(12):
        clock.tick(5)
        for number, name in enumerate(names):
            if sample == 0 and states[name] == "running":
                _deliver(board, name, number, minute, clock())
            late = 1 + ((12 * minute + sample) * (7 + number) % 60) / (1 if minute % 16 > 12 else 4)
            board.update(name, oldest_undelivered_commit_at=clock() - timedelta(seconds=late))
        board.history.sample(board.snapshot())


def _deliver(board: StatusStore, route: str, number: int, batch: int, at: datetime) -> None:
    inserted = 100 + 13 * batch % 70 + number
    received = {"insert": inserted, "update_preimage": 40, "update_postimage": 40, "delete": 7}
    applied = {**received, "update_preimage": 0}
    seconds = {"prepare": 0.1 + batch % 7 / 20, "write": 0.4 + number / 100, "record": 0.1}
    latency = 0.8 + batch % 5 / 4
    board.batch(
        route,
        BatchStatus(
            batch, (batch, batch + 1), received, seconds, "delivered", at, applied=applied, latency_seconds=latency
        ),
    )


def named(number: int) -> tuple[str, str, str]:
    """Return the names of a route, its table and its sink."""
    table, sink = TABLES[number // len(SINKS)], list(SINKS)[number % len(SINKS)]
    return f"{table}_{sink}", table, sink


def _put_into(board: StatusStore, route: str, state: State) -> None:
    what, condition, next_step = (
        text.format(route=route, table=route.split("_", maxsplit=1)[0]) for text in WHY.get(state, ("",) * 3)
    )
    if what:
        board.failed(route, what, condition, next_step)
    board.state(route, state, what)
    if state == "bootstrapping":
        board.update(route, bootstrap_progress=0.4, delivered_version=-1)
