"""A Delta target that lost acknowledged commits, without an operation in its log that says so, gets them again or halts its route."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from deltalake import DeltaTable
from structlog.testing import capture_logs

from cdf_replicator.state.command_queue import Command
from connectors.delta.tables import table
from connectors.delta.tables.snapshot import Snapshot
from tests.support.tiers import nightly
from tests.support.waiting import until


class Target:
    """The target of the only route, in the folder of its kind."""

    def __init__(self, world, kind):
        self.world, self.route = world, f"orders_{kind}"
        self.path = Path(world.folder, kind, self.route if kind == "features" else "orders")
        self.backup = Path(world.folder, "backup")

    def run(self, **more):
        return self.world.run(self.route, **more)

    def ids(self, version=None):
        return sorted(DeltaTable(self.path, version=version).to_pyarrow_table(columns=["id"])["id"].to_pylist())

    def generation(self):
        return self.world.state(self.route).generation

    def copy(self):
        shutil.copytree(self.path, self.backup)

    def restore(self):
        shutil.rmtree(self.path)
        shutil.copytree(self.backup, self.path)
        self.world.forget()


@pytest.fixture
def target(prepared, request):
    kind = getattr(request, "param", "audit")
    return Target(prepared(delivered, kind), kind)


def delivered(world, kind):
    """Deliver two rows into a target of the kind."""
    world.into_delta(kind)
    if kind == "features":
        aggregates = json.dumps({"rows": "count(*)"})
        world.environ |= {
            "CDF_ROUTES__ORDERS_FEATURES__ENTITY": "id",
            "CDF_ROUTES__ORDERS_FEATURES__AGGREGATES": aggregates,
        }
    world.environ[f"CDF_ROUTES__ORDERS_{kind.upper()}__FILTER"] = "id < 90"
    world.create(rows=["(1, 'a')", "(2, 'b')"])
    assert world.run(f"orders_{kind}") is None


@pytest.mark.parametrize("target", ["audit", nightly("replica")], indirect=True)
def test_copy_of_the_files_gets_what_it_lacks(world, target):
    for id_ in (3, 4, 5):
        world.insert(f"({id_}, 'c')")
        assert target.run() is None
        if id_ == 3:
            target.copy()
    target.restore()
    world.insert("(6, 'd')")
    with capture_logs() as logs:
        assert target.run() is None
    (entry,) = [entry for entry in logs if entry["event"].startswith("the target was restored")]
    assert ("next_step" in entry) == (target.route == "orders_replica"), (
        "no redrive and no repair reaches an audit table"
    )
    assert target.ids() == [1, 2, 3, 4, 5, 6]
    assert target.run() is None
    assert target.generation() == 1, "the changes are delivered again once"


@pytest.mark.parametrize("target", ["features"], indirect=True)
def test_copy_of_a_feature_table_halts_its_route(world, target):
    target.copy()
    world.insert("(3, 'c')")
    assert target.run() is None
    target.restore()
    decision = target.run()
    assert (decision.reason, decision.remedy) == ("target_restored", f"Run: cdf-replicator resync {target.route}")
    assert target.run(command=Command("resync", target.route)) is None
    assert target.ids() == [1, 2, 3]


def test_copy_that_is_restored_under_a_running_query_gets_what_it_lacks(world, target, live):
    target.copy()
    live(target.route)
    for id_ in (3, 4):
        world.insert(f"({id_}, 'c')")
        until(lambda id_=id_: id_ in target.ids())
    until(lambda: world.board.snapshot().routes[0].delivered_version == world.version())  # and the checksum is written
    target.restore()
    world.insert("(5, 'd')")
    until(lambda: target.ids() == [1, 2, 3, 4, 5])


def test_clone_of_a_backup_gets_what_it_lacks(world, target):
    target.copy()
    world.insert("(3, 'c')")
    assert target.run() is None
    world.spark.sql(f"TRUNCATE TABLE delta.`{target.path}`")  # Delta clones into an empty table only
    world.spark.sql(f"CREATE OR REPLACE TABLE delta.`{target.path}` SHALLOW CLONE delta.`{target.backup}`")
    world.insert("(4, 'd')")
    assert target.run() is None
    rows = world.spark.read.format("delta").load(str(target.path)).select("id").collect()
    assert sorted(row.id for row in rows) == [1, 2, 3, 4]


@pytest.mark.parametrize("target", ["audit", nightly("replica")], indirect=True)
def test_batch_without_rows_is_recorded_once(world, target):
    """Else the next start would take the table for a copy."""
    world.insert("(99, 'left out')")
    assert target.run() is None
    recorded = Snapshot(str(target.path)).version
    assert target.run() is None
    assert (target.generation(), Snapshot(str(target.path)).version) == (0, recorded)
    world.insert("(3, 'c')")
    assert target.run() is None
    assert (target.generation(), target.ids()) == (0, [1, 2, 3])


def test_range_replayed_ahead_of_the_stream_hides_no_loss(world, target):
    """RESTORE takes back what the stream delivered after the replay of later commits."""
    for id_ in (3, 4, 5):
        world.insert(f"({id_}, 'c')")
    assert target.run(command=Command("replay", target.route, 3, 4)) is None
    ahead = next(version for version in range(Snapshot(str(target.path)).version + 1) if 5 in target.ids(version))
    assert target.ids() == [1, 2, 3, 4, 5]
    world.spark.sql(f"RESTORE delta.`{target.path}` TO VERSION AS OF {ahead}")
    assert target.ids() == [1, 2, 4, 5]
    assert target.run() is None
    assert target.ids() == [1, 2, 3, 4, 5]


def recreated(world, *rows):
    """Put another table in the place of the source."""
    shutil.rmtree(world.table)
    world.forget()
    world.create(rows=rows)


def test_rows_of_the_former_source_table_hide_no_loss(world, target):
    for id_ in (3, 4, 5):
        world.insert(f"({id_}, 'former')")
    assert target.run() is None
    recreated(world)
    assert target.run(command=Command("resync", target.route)) is None
    target.copy()
    for id_ in range(11, 16):
        world.insert(f"({id_}, 'c')")
    assert target.run() is None
    target.restore()
    decision = target.run()
    assert decision is not None, f"version 4 is taken for the newest, of {target.ids()}"
    assert (decision.reason, decision.remedy) == ("target_restored", f"Run: cdf-replicator resync {target.route}")


def test_rows_of_another_state_path_hide_no_loss(world, target):
    """The other state path wrote as many generations, of the former source table."""
    assert target.run(command=Command("resync", target.route)) is None
    for id_ in range(3, 9):
        world.insert(f"({id_}, 'former')")
    assert target.run() is None
    world.environ["CDF_STATE_PATH"] = str(world.folder / "other")
    recreated(world, "(11, 'a')")
    assert target.run(command=Command("resync", target.route)) is None
    world.insert("(12, 'b')")
    assert target.run() is None
    target.copy()
    for id_ in range(13, 21):
        world.insert(f"({id_}, 'c')")
    assert target.run() is None
    target.restore()
    assert target.run() is None
    assert target.ids() == [1, 1, 2, 2, *range(3, 9), *range(11, 21)]


@pytest.mark.parametrize("target", ["replica"], indirect=True)
def test_row_repaired_ahead_of_the_stream_hides_no_loss(world, target):
    """RESTORE takes back what the stream delivered after the repair of a row with the source's newest version."""
    for id_ in (3, 4):
        world.insert(f"({id_}, 'c')")
    repair = Command("repair", target.route, identities=("1",))
    assert target.run(command=repair) is None
    assert world.answer(repair).message == "1 entries written as of version 3"
    path = str(target.path)
    repaired = next(v for v in range(Snapshot(path).version) if repair.id in (table.commit_text(path, v) or ""))
    world.insert("(5, 'd')")
    assert target.run() is None
    assert target.ids() == [1, 2, 3, 4, 5]
    world.spark.sql(f"RESTORE delta.`{path}` TO VERSION AS OF {repaired}")
    assert target.ids() == [1, 2], "the repaired row is ahead of the stream"
    assert target.run() is None
    assert target.ids() == [1, 2, 3, 4, 5]
