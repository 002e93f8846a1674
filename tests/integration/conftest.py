"""A world for one test: a Delta table, a state path, sinks, and routes run to the end as ``run --once`` does."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path

import pytest

from cdf_replicator.delivery import RetryPolicy
from cdf_replicator.delivery.dead_letters import DeadLetters
from cdf_replicator.monitoring.metrics import Metrics
from cdf_replicator.monitoring.status_store import StatusStore
from cdf_replicator.runtime.route_factory import RouteFactory
from cdf_replicator.settings import load
from cdf_replicator.source.table import SourceTable
from cdf_replicator.state import command_queue
from cdf_replicator.state.storage_path import LocalPath
from cdf_replicator.state.store import StateStore
from tests.integration.prepared import PreparedWorlds
from tests.support import light_table
from tests.support.vacuum import vacuum

ENTRY_POINTS = """[cdf_replicator.sinks]
picky = tests.integration.sinks:PickySink
nameless = tests.integration.sinks:NamelessSink
endless = tests.integration.sinks:EndlessSink
lines = tests.integration.sinks:LinesSink
folder = tests.contract.folder_sink:FolderSink
"""
PATIENCE_SECONDS = 120


@pytest.fixture(scope="module", autouse=True)
def _sinks_installed(tmp_path_factory):
    """As a distribution with entry points, the way a third party's sinks are. Other tests list the sinks that are installed."""
    home = tmp_path_factory.mktemp("site")
    info = home / "test_sinks-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: test-sinks\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    sys.path.insert(0, str(home))
    yield
    sys.path.remove(str(home))


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch):
    monkeypatch.setattr(RetryPolicy, "backoff", lambda self, attempt: 0.0)


@pytest.fixture
def lose_commit(world):
    """Take Spark's word that the newest micro-batch was committed back, as a kill just before it would."""

    def lose(route, generation=0):
        folder = world.state_path.checkpoint(route, generation) / "commits"
        newest = max(int(file.name) for file in folder.glob("[0-9]*"))
        (folder / str(newest)).unlink()
        (folder / f".{newest}.crc").unlink(missing_ok=True)

    return lose


@pytest.fixture
def world(spark, tmp_path):
    world = World(spark, tmp_path)
    yield world
    world.forget()  # tables that no later test reads


@pytest.fixture(scope="session")
def _prepared_worlds(tmp_path_factory):
    return PreparedWorlds(tmp_path_factory.mktemp("prepared"))


@pytest.fixture
def prepared(world, _prepared_worlds):
    """Return a function that puts the world into the state that a function makes of it, and returns the world."""

    def put(prepare, *arguments):
        _prepared_worlds.put(world, prepare, *arguments)
        return world

    return put


@pytest.fixture
def started(prepared):
    """A route that has loaded two rows."""
    return prepared(two_rows)


@pytest.fixture
def loaded(prepared):
    """A route that has loaded one row."""
    return prepared(one_row)


def one_row(world):
    world.create(rows=["(1, 'a')"])
    assert world.run() is None


def two_rows(world):
    world.create(rows=["(1, 'a')", "(2, 'b')"])
    assert world.run() is None


@pytest.fixture
def live(world):
    """Start a route as the service does, and stop it at the end of the test."""
    stop, runners = threading.Event(), []

    def start(*names):
        world.environ.setdefault("CDF_TRIGGER_SECONDS", "0.2")
        letters = world.letters
        started = [world.runner(name, once=False, stop=stop, letters=letters) for name in names]
        for runner in started:
            runner.start()
        runners.extend(started)
        return started

    yield start
    stop.set()
    for runner in runners:
        runner.wake()
    for runner in runners:
        runner.join(30)
        assert not runner.is_alive()


class World:
    """``environ``: the configuration of the service; change it as an operator would."""

    def __init__(self, spark, folder: Path) -> None:
        self.spark = spark
        self.folder = folder
        self.environ = {
            "CDF_STATE_PATH": str(folder / "state"),
            "CDF_TABLES__ORDERS__PATH": str(folder / "orders"),
            "CDF_TABLES__ORDERS__KEYS": "id",
            "CDF_TABLES__ORDERS__SINKS": "files",
            "CDF_SINKS__FILES__TYPE": "picky",
            "CDF_SINKS__FILES__PATH": str(folder / "files"),
            "CDF_DELIVERY__RETRY_SECONDS": "0.5",
            "CDF_DELIVERY__MAX_REMOVED_SHARE": "1",  # of tables as small as these, one row is a large share
        }
        self.move(folder)

    def move(self, folder: Path) -> None:
        """Take another folder, with the same configuration."""
        paths = {name: text.replace(str(self.folder), str(folder)) for name, text in self.environ.items()}
        self.environ |= paths
        self.folder = folder
        self.table = str(folder / "orders")
        self.files = folder / "files"
        self.audit = str(folder / "audit" / "orders")
        self.files.mkdir(parents=True, exist_ok=True)
        self.board = StatusStore()
        self.metrics = Metrics(self.board)

    def forget(self) -> None:
        """Clear what Delta has read of tables, so that it reads them again, as another process does."""
        self.spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()

    def into_lines(self) -> None:
        """Follow into the append sink instead."""
        self.environ |= {"CDF_TABLES__ORDERS__SINKS": "lines", "CDF_SINKS__LINES__TYPE": "lines"}
        self.environ["CDF_SINKS__LINES__PATH"] = self.environ.pop("CDF_SINKS__FILES__PATH")
        self.environ["CDF_SINKS__LINES__HEADERS"] = "a=b"
        del self.environ["CDF_SINKS__FILES__TYPE"]

    def into_delta(self, kind: str) -> None:
        """Follow into a Delta sink instead: ``audit`` or ``features``, in the folder of that name."""
        prefix = f"CDF_SINKS__{kind.upper()}__"
        self.environ |= {
            "CDF_TABLES__ORDERS__SINKS": kind,
            prefix + "TYPE": f"delta_{kind}",
            prefix + "PATH": str(self.folder / kind),
        }
        del self.environ["CDF_SINKS__FILES__TYPE"], self.environ["CDF_SINKS__FILES__PATH"]

    # The source

    def create(self, columns="id bigint, name string", *, rows=(), partitioned="", **properties) -> None:
        """``rows``: the text of SQL tuples."""
        given = {"delta.enableChangeDataFeed": "true", **{k.replace("__", "."): v for k, v in properties.items()}}
        if partitioned or not light_table.created(self.table, columns, given):
            listed = ", ".join(f"'{name}' = '{value}'" for name, value in given.items())
            by = f"PARTITIONED BY ({partitioned})" if partitioned else ""
            self.sql(f"CREATE TABLE {{t}} ({columns}) USING delta {by} TBLPROPERTIES ({listed})")
        if rows:
            self.insert(*rows)

    def sql(self, statement: str):
        """Run a statement in Spark."""
        return self.spark.sql(statement.replace("{t}", f"delta.`{self.table}`"))

    def change(self, statement: str) -> None:
        """Run an UPDATE or a DELETE, in Spark only if it has to be."""
        if not light_table.changed(self.table, statement):
            self.sql(statement)

    def insert(self, *rows: str) -> None:
        if not light_table.inserted(self.table, rows):
            self.sql(f"INSERT INTO {{t}} VALUES {', '.join(rows)}")

    def replace(self, *rows: str) -> None:
        """Replace all rows by others, as an overwrite does."""
        assert light_table.inserted(self.table, rows, "overwrite")

    def overwrite(self, frame, files=2) -> None:
        frame.repartition(files).write.format("delta").mode("overwrite").save(self.table)

    def version(self) -> int:
        return max(int(file.stem) for file in Path(self.table, "_delta_log").glob("[0-9]*.json"))

    def forget_log_before(self, version: int) -> None:
        """As log cleanup does: a checkpoint at ``version``, and no commit files before it."""
        assert self.version() == version, "the checkpoint is made of the newest version"
        if not light_table.checkpointed(self.table):
            log = self.spark._jvm.org.apache.spark.sql.delta.DeltaLog.forTable(self.spark._jsparkSession, self.table)
            none = self.spark._jvm.scala.Option.empty()
            log.checkpoint(log.update(False, none, none), none)
        for old in range(version):
            for ending in ("json", "crc"):
                Path(self.table, "_delta_log", f"{old:020d}.{ending}").unlink(missing_ok=True)
        self.spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()

    def vacuum(self) -> None:
        """Remove every file that the newest version does not need."""
        if not light_table.vacuumed(self.table):
            vacuum(self.spark, self.table)

    # The service

    @property
    def settings(self):
        return load(self.environ)

    @property
    def state_path(self) -> StateStore:
        return StateStore.open(LocalPath(self.environ["CDF_STATE_PATH"]))

    @property
    def letters(self) -> DeadLetters:
        return DeadLetters(self.spark, self.state_path.dead_letters)

    def source(self) -> SourceTable:
        return SourceTable(self.spark, next(iter(self.settings.routes.values())).source)

    def runner(self, name="orders_files", *, once=True, start_version=None, stop=None, letters=None):
        """``letters`` are those that several routes share, as in a service: the object serializes the table's creation."""
        settings = self.settings
        self.board = StatusStore()
        self.metrics = Metrics(self.board)
        for slug, sink in settings.sinks.items():
            self.board.add_sink(slug, sink.type, "")
        stop = stop or threading.Event()
        letters = letters or self.letters
        factory = RouteFactory(self.spark, settings, self.state_path, letters, self.metrics, once, stop)
        return factory.runner(settings.routes[name], start_version)

    def run(self, name="orders_files", *, start_version=None, command=None):
        """``--once``. ``command``: one or several commands under the state path. Returns the decision on an error, or None."""
        runner = self.runner(name, start_version=start_version)
        for request in [command] if isinstance(command, command_queue.Command) else command or ():
            self.submit(runner, request)
        runner.start()
        runner.join(PATIENCE_SECONDS)
        assert not runner.is_alive(), "the route did not come to an end"
        return runner.failure

    def submit(self, runner, command: command_queue.Command) -> None:
        """As another process does, through the running service."""
        command_queue.enqueue(self.state_path.requests, command)
        command_queue.accept(self.state_path.requests, command)
        runner.submit(command)

    def answer(self, command) -> command_queue.CommandStatus:
        return command_queue.read_status(self.state_path.requests, command.id)

    def state(self, name="orders_files"):
        return self.state_path.load(name)

    def sample(self, name: str) -> float:
        """The one series of a metric."""
        (family,) = (family for family in self.metrics.registry.collect() if family.name == name)
        (sample,) = family.samples
        return sample.value

    def last_batch(self):
        return self.board.snapshot().routes[0].batches[0]

    # The sinks

    def delivered(self, table="orders") -> dict:
        """Return the rows in the folder sink by key."""
        held = (json.loads(file.read_text()) for file in (self.files / table).glob("*.json"))
        return {entry["key"]: entry["row"] for entry in held if entry["row"] is not None}

    def expected(self, passes=lambda row: True) -> dict:
        """Return the rows of the table by key; ``passes`` is a filter."""
        rows = light_table.read(self.table)
        if rows is None:
            rows = [row.asDict() for row in self.sql("SELECT * FROM {t}").collect()]
        return {str(row["id"]): row for row in rows if passes(row)}

    def trouble(self, what: str | None) -> None:
        (self.files / "trouble").write_text(what or "")

    def audited(self, *columns: str) -> list[tuple]:
        return self._rows(self.audit, columns)

    def lines(self) -> list:
        return [json.loads(line) for line in (self.files / "orders.jsonl").read_text().splitlines()]

    def dead_letters(self, *columns: str) -> list[tuple]:
        if not self.state_path.dead_letters.exists():
            return []
        return self._rows(str(self.state_path.dead_letters), columns)

    def _rows(self, path, columns) -> list[tuple]:
        rows = light_table.read(path, columns)
        if rows is not None:
            return sorted((tuple(row.values()) for row in rows), key=repr)
        frame = self.spark.read.format("delta").load(path)
        return sorted((tuple(row) for row in frame.select(*columns).collect()), key=repr)
