"""A checkpoint that is cut off, or gone: what may have been delivered since is delivered again, once; nothing is lost."""

from __future__ import annotations

import random
import shutil

import pytest

FILES = ("offsets/{}", "commits/{}", "metadata", "offsets/.{}.crc", "offsets/{}", "commits/{}")
ROUTES = ("orders_files", "orders_audit")


@pytest.fixture
def both(world):
    """A snapshot and two micro-batches in an upsert and an append sink."""
    world.environ["CDF_TABLES__ORDERS__SINKS"] = "files,audit"
    world.environ |= {"CDF_SINKS__AUDIT__TYPE": "delta_audit", "CDF_SINKS__AUDIT__PATH": str(world.folder / "audit")}
    world.create(rows=["(1, 'a')", "(2, 'b')"])
    for number in range(2):
        deliver(world)
        world.insert(f"({10 + number}, 'more')")
    deliver(world)
    return world


def deliver(world):
    for route in ROUTES:
        assert world.run(route) is None


def agree(world):
    """The sink shows the table, the audit each change once."""
    feed = world.spark.read.format("delta").option("readChangeFeed", "true").option("startingVersion", 2)
    changes = feed.load(world.table).where("_change_type <> 'update_preimage'")
    made = changes.selectExpr("id", "name", "_change_type", "_commit_version").collect()
    kept = [row for row in world.audited("id", "name", "change_type", "commit_version") if row[2] != "snapshot"]
    return world.delivered() == world.expected() and kept == sorted((tuple(row) for row in made), key=repr)


def test_a_file_that_is_cut_off_anywhere_costs_nothing(both):
    chosen = random.Random(6)
    for name in FILES:
        for route in ROUTES:
            file = both.state_path.checkpoint(route, both.state(route).generation) / name.format(newest(both, route))
            whole = file.read_bytes()
            file.write_bytes(whole[: chosen.randrange(len(whole))])
        both.sql(f"UPDATE {{t}} SET name = '{name}' WHERE id = 2")
        deliver(both)
        assert agree(both), name


@pytest.mark.parametrize("gone", ["", "offsets"])
def test_a_part_that_is_gone_costs_nothing(both, gone):
    for route in ROUTES:
        part = both.state_path.checkpoint(route, 0) / gone
        shutil.rmtree(part) if part.is_dir() else part.unlink()
    both.sql("DELETE FROM {t} WHERE id = 1")
    deliver(both)
    assert agree(both)


def newest(world, route):
    """Number of the newest micro-batch."""
    commits = world.state_path.checkpoint(route, world.state(route).generation) / "commits"
    return max(int(file.name) for file in commits.glob("[0-9]*"))
