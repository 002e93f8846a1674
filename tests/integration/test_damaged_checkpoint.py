"""A checkpoint that is cut off, gone or older: what may have been delivered since is delivered again, once; nothing is lost."""

from __future__ import annotations

import random
import shutil
import time

import pyarrow as pa
import pytest
import redis
from deltalake import DeltaTable
from structlog.testing import capture_logs

from cdf_replicator.pipeline import start_position
from cdf_replicator.pipeline.batch_writer import BatchWriter
from cdf_replicator.state.command_queue import Command
from cdf_replicator.verification import verify
from connectors.change import COMMIT_VERSION
from tests.support.tiers import nightly

FILES = {"offsets/{}": 1, "commits/{}": 2, "metadata": 10, "offsets/.{}.crc": 11}
"""Files of a checkpoint, each with the key of the row that changes after its damage."""
ROUTES = ("orders_files", "orders_audit")


@pytest.fixture
def both(prepared):
    return prepared(two_routes)


def two_routes(world):
    """Deliver a snapshot and two micro-batches in an upsert and an append sink."""
    world.environ["CDF_TABLES__ORDERS__SINKS"] = "files,audit"
    world.environ |= {"CDF_SINKS__AUDIT__TYPE": "delta_audit", "CDF_SINKS__AUDIT__PATH": str(world.folder / "audit")}
    world.create(rows=["(1, 'a')", "(2, 'b')"])
    for number in range(2):
        deliver(world)
        world.insert(f"({10 + number}, 'more')")
    deliver(world)


def deliver(world):
    for route in ROUTES:
        assert world.run(route) is None


def agree(world):
    """The sink shows the table, the audit each change once."""
    feed = pa.table(DeltaTable(world.table).load_cdf(starting_version=2))
    changes = feed.select(["id", "name", "_change_type", "_commit_version"]).to_pylist()
    made = [tuple(change.values()) for change in changes if change["_change_type"] != "update_preimage"]
    kept = [row for row in world.audited("id", "name", "change_type", "commit_version") if row[2] != "snapshot"]
    return world.delivered() == world.expected() and kept == sorted(made, key=repr)


def test_file_truncated_at_any_byte_loses_nothing(both):
    chosen = random.Random(6)
    for name, key in FILES.items():
        for route in ROUTES:
            file = both.state_path.checkpoint(route, both.state(route).generation) / name.format(newest(both, route))
            whole = file.read_bytes()
            file.write_bytes(whole[: chosen.randrange(len(whole))])
        both.change(f"UPDATE {{t}} SET name = '{name}' WHERE id = {key}")
        deliver(both)
    assert agree(both)


@pytest.mark.parametrize("gone", ["", nightly("offsets")])
def test_missing_part_of_the_checkpoint_loses_nothing(both, gone):
    for route in ROUTES:
        part = both.state_path.checkpoint(route, 0) / gone
        shutil.rmtree(part) if part.is_dir() else part.unlink()
    both.change("DELETE FROM {t} WHERE id = 1")
    deliver(both)
    assert agree(both)


@pytest.mark.parametrize("delivered", [nightly(0), 1, nightly(3)])
def test_restored_state_path_loses_nothing(both, delivered):
    """Other changes reuse its batch numbers: the audit table must not treat them as already delivered."""
    copy = both.folder / "copy"
    for number in range(delivered + 2):
        if number == delivered:
            shutil.copytree(both.folder / "state", copy)
        both.insert(f"({20 + number}, 'known')")
        deliver(both)
    both.insert("(30, 'while away')")
    shutil.rmtree(both.folder / "state")
    copy.rename(both.folder / "state")
    both.change("UPDATE {t} SET name = 'later' WHERE id = 2")
    deliver(both)
    assert agree(both)
    both.insert("(31, 'and on')")
    deliver(both)
    assert agree(both)


def test_state_path_restored_from_before_the_first_start_leaves_no_deleted_row(both):
    """The route starts with a snapshot again, and the target holds an epoch that the state path does not record."""
    for folder in (both.folder / "state" / "routes").iterdir():
        shutil.rmtree(folder)
    both.change("DELETE FROM {t} WHERE id = 1")
    deliver(both)
    assert both.delivered() == both.expected()
    assert both.state(ROUTES[0]).epoch == 2
    both.insert("(30, 'and on')")
    deliver(both)
    assert both.delivered() == both.expected()
    last = [row for row in both.audited("id", "change_type", "commit_version") if row[0] == 30]
    assert last == [(30, "insert", both.version())]


def test_state_path_restored_from_before_the_first_write_doubles_no_audit_row(world):
    """The copy has the pinned version; the audit has the snapshot and what followed."""
    world.into_delta("audit")
    world.create(rows=["(1, 'twin')", "(1, 'twin')", "(2, 'b')"])
    route = world.settings.routes[ROUTES[1]]
    pinned = start_position.resolve(
        route, world.source(), world.settings.sink(route.sink), world.state_path, world.letters
    )
    assert (pinned.phase, pinned.target_prepared) == ("bootstrapping", False)
    copy = world.folder / "copy"
    shutil.copytree(world.folder / "state", copy)
    assert world.run(ROUTES[1]) is None
    for number in range(2):
        world.insert(f"({10 + number}, 'more')")
        assert world.run(ROUTES[1]) is None
    columns = ("id", "name", "change_type", "commit_version")
    held = world.audited(*columns)
    shutil.rmtree(world.folder / "state")
    copy.rename(world.folder / "state")
    assert world.run(ROUTES[1]) is None
    assert world.audited(*columns) == held
    world.insert("(20, 'and on')")
    assert world.run(ROUTES[1]) is None
    assert world.audited(*columns) == sorted([*held, (20, "and on", "insert", world.version())], key=repr)
    assert verify(world.spark, route, world.settings.sink(route.sink), world.state_path).comparison.equal


def test_resync_after_a_restored_state_path_loads_the_snapshot(both):
    """Its number is that of the resync which the copy does not know."""
    copy = both.folder / "copy"
    shutil.copytree(both.folder / "state", copy)
    for _ in range(2):
        for route in ROUTES:
            assert both.run(route, command=Command("resync", route)) is None
        if copy.exists():
            shutil.rmtree(both.folder / "state")
            copy.rename(both.folder / "state")
            assert {both.run(route).reason for route in ROUTES} == {"target_claimed"}
            both.change("DELETE FROM {t} WHERE id = 1")
    assert both.delivered() == both.expected()
    loaded = [row for row in both.audited("id", "change_type", "commit_version") if row[2] == both.version()]
    assert sorted(row[0] for row in loaded if row[1] == "snapshot") == sorted(map(int, both.expected()))


@pytest.mark.parametrize("kind", ["redis", nightly("replica")])
def test_state_path_restored_during_a_replay_names_or_delivers_every_delete(world, monkeypatch, request, kind):
    """The replay has written a deleted key again, and the copy ends after the delete."""
    route = f"orders_{kind}"
    if kind == "redis":
        server = request.getfixturevalue("redis_server")
        world.environ |= {"CDF_TABLES__ORDERS__SINKS": kind, "CDF_SINKS__REDIS__TYPE": kind}
        world.environ |= {"CDF_SINKS__REDIS__URL": server.url, "CDF_SINKS__REDIS__TOMBSTONE_SECONDS": "1"}
        del world.environ["CDF_SINKS__FILES__TYPE"], world.environ["CDF_SINKS__FILES__PATH"]
    else:
        world.into_delta(kind)
    world.create(rows=["(1, 'a')"])
    world.insert("(2, 'b')")
    assert world.run(route) is None
    world.change("DELETE FROM {t} WHERE id = 2")  # version 3
    world.insert("(3, 'c')")
    world.insert("(4, 'd')")
    assert world.run(route) is None
    copy = world.folder / "copy"
    shutil.copytree(world.folder / "state", copy)
    time.sleep(1.1)  # the tombstone expires
    world.environ["CDF_TABLES__ORDERS__MAX_FILES_PER_TRIGGER"] = "1"
    fails_at(world, monkeypatch, 3)
    assert world.run(route, start_version=1).reason == "bug"
    monkeypatch.undo()
    world.insert("(5, 'e')")
    shutil.rmtree(world.folder / "state")
    copy.rename(world.folder / "state")
    with capture_logs() as logs:
        assert world.run(route) is None
    (entry,) = [entry for entry in logs if entry["event"].startswith("the target has more than the state path")]
    if kind == "redis":
        with redis.Redis.from_url(server.url) as client:
            assert [client.exists(f"orders:{id_}") for id_ in range(1, 6)] == [1, 0, 1, 1, 1]
    else:
        assert entry["next_step"].endswith(f"Run: cdf-replicator resync {route}")


def fails_at(world, monkeypatch, number):
    """Fail before the write of a version."""
    write = BatchWriter.write

    def failing(self, frame, batch, **more):
        if frame.where(f"{COMMIT_VERSION} >= {number}").count():
            raise RuntimeError("the plug was pulled")
        return write(self, frame, batch, **more)

    monkeypatch.setattr(BatchWriter, "write", failing)


def newest(world, route):
    """Number of the newest micro-batch."""
    commits = world.state_path.checkpoint(route, world.state(route).generation) / "commits"
    return max(int(file.name) for file in commits.glob("[0-9]*"))
