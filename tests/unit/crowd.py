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
    from cdf_replicator.monitoring.status import State

SINKS: Final = {"audit": "delta_audit", "search": "elasticsearch", "cache": "redis", "copy": "postgres"}
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
        "Key columns id of table t3 do not identify a row: at version 16 there are several rows of key 5001 (2 rows).",
        "keys",
        "Correct CDF_TABLES__T3__KEYS or the data. Then run: `cdf-replicator resync {}`",
    ),
    "stalled": ("No version, micro-batch or task has completed for 600 s.", "stalled", "Check the sink and the log."),
    "retrying": (
        "Elasticsearch does not answer at http://search:9200: [Errno 111] Connection refused",
        "unreachable",
        "Start it, or correct its address. The route continues by itself.",
    ),
}


def crowd(routes: int = 50, batches: int = 60) -> StatusStore:
    """Return a store of routes that have delivered ``batches`` micro-batches each."""
    clock = Clock()
    board = StatusStore(clock)
    board.runtime(spark="4.2.0", delta="4.4.0", java="17")
    for sink, type_ in SINKS.items():
        board.add_sink(sink, type_, f"http://{sink}:9200")
        board.sink_up(sink)
    names = [(f"t{number // 4}_{sink}", f"t{number // 4}", sink) for number, sink in enumerate(_sinks(routes))]
    for name, table, sink in names:
        board.add_route(name, table, sink, ("mapping",))
        board.state(name, "running")
        board.requests(name, [0.004] * 90 + [0.2] * 10, {"timeout": 2}, 4096)
    settings = [Setting(f"CDF_{n}", f"n{n}", "value", "default") for n in range(60)]
    for number, (name, table, _) in enumerate(names):
        board.update(
            name,
            definition=Definition(
                f"s3a://lake/{table}", f"index {table}", "upsert", ("id",), "status <> 'draft'", None
            ),
            checkpoint=f"/var/lib/cdf/routes/{name}/checkpoints/0",
            headroom_seconds=float(86_400 * 7 - 3600 * number),
            headroom_versions=1000,
            source_version=batches + 40,
            delivered_version=batches + 40 - number % 3,
        )
        settings += [
            Setting(f"CDF_TABLES__{table.upper()}__PATH", f"tables.{table}.path", f"s3a://lake/{table}", "environment"),
            Setting(f"CDF_ROUTES__{name.upper()}__FILTER", f"routes.{name}.filter", "status <> 'draft'", "environment"),
        ]
    board.set_settings(settings)
    for batch in range(batches):
        clock.tick(5)
        for number, (name, _, _) in enumerate(names):
            rows = {
                "insert": 100 + 13 * batch % 70 + number,
                "update_preimage": 40,
                "update_postimage": 40,
                "delete": 7,
            }
            seconds = {"prepare": 0.1 + batch % 7 / 20, "write": 0.4 + number / 100, "record": 0.1}
            board.batch(
                name,
                BatchStatus(batch, (batch, batch + 1), rows, seconds, "delivered", clock(), applied=rows, noop=0),
            )
            board.update(name, oldest_undelivered_commit_at=clock() - timedelta(seconds=1 + number % 5))
    for number, state in STATES.items():
        if number < routes:
            _put_into(board, names[number][0], state)
    for number in (5, 9):
        if number < routes:
            board.update(names[number][0], dead_letters=3 * number)
    return board


def _sinks(routes: int) -> list[str]:
    return [list(SINKS)[number % len(SINKS)] for number in range(routes)]


def _put_into(board: StatusStore, route: str, state: State) -> None:
    what, condition, next_step = WHY.get(state, ("", "", ""))
    if what:
        board.failed(route, what, condition, next_step.format(route))
    board.state(route, state, what)
    if state == "bootstrapping":
        board.update(route, bootstrap_progress=0.4, delivered_version=-1)
