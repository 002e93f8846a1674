"""``verify`` compares an audit table with the change feed, for the versions that the route delivered and the feed still has."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import functions as F  # noqa: N812

from cdf_replicator.commands.verify import summary
from cdf_replicator.errors.exceptions import RouteHaltError
from cdf_replicator.pipeline import start_position
from cdf_replicator.state.command_queue import Command
from cdf_replicator.transform import change_frame
from cdf_replicator.verification import verify
from connectors import Batch, PermanentError
from connectors.delta.audit import DeltaAuditSink
from tests.support import light_table
from tests.support.tiers import nightly

NONE = {"missing": 0, "extra": 0, "different": 0, "foreign": 0}


@pytest.fixture
def world(world):
    world.into_delta("audit")
    return world


@pytest.fixture
def loaded(prepared):
    return prepared(one_row)


def one_row(world):
    world.create(rows=["(1, 'a')"])
    run(world)


def run(world, **more):
    assert world.run("orders_audit", **more) is None


def verified(world, **more):
    settings = world.settings
    route = settings.routes["orders_audit"]
    return verify(world.spark, route, settings.sink(route.sink), world.state_path, **more)


def damage(world, statement):
    """Run an UPDATE or a DELETE of the audit table, in Spark only if it has to be."""
    if not light_table.changed(world.audit, statement):
        world.spark.sql(statement.replace("{t}", f"delta.`{world.audit}`"))


def rows_of(world, wanted):
    """The rows of the audit table that a condition of ``pyarrow`` selects."""
    return DeltaTable(world.audit).to_pyarrow_table().filter(wanted)


def append(world, rows):
    write_deltalake(world.audit, rows, mode="append")


def found(result):
    return {(each.kind, each.identity, each.column) for each in result.comparison.differences}


def three_rows(world):
    world.create(rows=["(1, 'a')", "(2, 'b')", "(3, 'c')"])
    run(world)


def change_everything(world):
    """Commit every change type, twins, a null key and a moved key: versions 2 to 6."""
    world.insert("(4, 'twin')", "(4, 'twin')", "(NULL, 'keyless')", "(5, 'one')", "(5, 'other')")
    world.change("UPDATE {t} SET name = 'later' WHERE id IN (1, 4)")
    world.change("UPDATE {t} SET id = 7 WHERE id = 2")
    world.change("DELETE FROM {t} WHERE id = 3")
    world.insert("(3, NULL)")


@pytest.mark.parametrize("preimages", ["true", nightly("false")])
def test_equal_audit_has_no_difference(world, prepared, here, preimages):
    world.environ["CDF_TABLES__ORDERS__INCLUDE_PREIMAGES"] = preimages
    prepared(three_rows)
    loaded = verified(world)
    change_everything(world)
    run(world)
    world.insert("(9, 'not delivered')")
    whole, earlier = verified(world), verified(world, at=3)

    assert [(each.first_version, each.version) for each in (loaded, whole, earlier)] == [(1, 1), (1, 6), (1, 3)]
    for each in (loaded, whole, earlier):
        assert each.comparison.equal, summary(each)
        assert each.comparison.rows == each.comparison.entries
    held = world.audited("commit_version")
    assert [each.comparison.rows for each in (loaded, whole)] == [3, len(held)]
    printed = here(world.environ, "verify", "orders")
    assert (printed.code, "orders_audit: versions 1 to 6 against" in printed.output) == (0, True)


def test_planted_damage_of_an_audit_is_found_exactly(world, prepared, here):
    world.environ["CDF_TABLES__ORDERS__INCLUDE_PREIMAGES"] = "true"
    prepared(three_rows)
    change_everything(world)
    run(world)
    append(world, rows_of(world, pc.field("change_type") == "delete"))
    foreign = rows_of(world, pc.field("commit_version") == 6)
    at = foreign.schema.get_field_index("source_table_id")
    append(
        world, foreign.set_column(at, foreign.schema.field(at), pa.nulls(len(foreign), foreign.schema.field(at).type))
    )
    damage(world, "UPDATE {t} SET name = 'edited' WHERE commit_version = 2 AND name = 'other'")
    damage(world, "UPDATE {t} SET name = 'edited' WHERE commit_version = 1 AND id = 2")
    damage(world, "DELETE FROM {t} WHERE change_type = 'update_preimage' AND id = 2")
    twins = rows_of(world, (pc.field("name") == "twin") & (pc.field("change_type") == "insert"))
    assert len(twins) == 2
    damage(world, "DELETE FROM {t} WHERE name = 'twin' AND change_type = 'insert'")
    append(world, twins.slice(1))
    damage(world, "UPDATE {t} SET commit_version = 3 WHERE commit_version = 6 AND source_table_id IS NOT NULL")
    result = verified(world)

    assert found(result) == {
        ("extra", "5:delete:3", None),
        ("foreign", "insert:3", None),
        ("different", "2:insert:5", "name"),
        ("different", "1:snapshot:2", "name"),
        ("missing", "4:update_preimage:2", None),
        ("missing", "2:insert:4", None),
        ("missing", "6:insert:3", None),
        ("extra", "3:insert:3", None),
    }
    assert result.comparison.kinds == {"missing": 3, "extra": 2, "different": 2, "foreign": 1}
    assert result.comparison.columns == {"name": 2}
    edited = next(each for each in result.comparison.differences if each.identity == "2:insert:5")
    assert (edited.version, edited.table, edited.target) == (2, "other", "edited")
    printed = here(world.environ, "verify", "orders_audit", "--format", "json")
    assert (printed.code, '"first_version": 1' in printed.output) == (1, True)


@pytest.mark.parametrize(
    ("definition", "missing", "extra"),
    [
        ({"CDF_TABLES__ORDERS__KEYS": ""}, '2:insert:{"id":4,"name":"d"}', '2:insert:{"id":4,"name":"edited"}'),
        pytest.param(
            *({"CDF_ROUTES__ORDERS_AUDIT__COLUMNS": "name"}, '2:insert:{"name":"d"}', '2:insert:{"name":"edited"}'),
            marks=pytest.mark.nightly,  # the audit has no key here either
        ),
        ({"CDF_ROUTES__ORDERS_AUDIT__RENAME": "id=number"}, "2:insert:4", None),
    ],
    ids=["no keys", "key not delivered", "key renamed"],
)
def test_change_without_a_key_in_the_audit_is_identified_by_its_content(world, definition, missing, extra):
    world.environ |= definition
    world.create(rows=["(1, 'a')", "(1, 'a')"])
    run(world)
    world.insert("(4, 'd')", "(6, 'twin')", "(6, 'twin')")
    run(world)
    damage(world, "UPDATE {t} SET name = 'edited' WHERE name = 'd'")
    differences = {("missing", missing, None), ("extra", extra, None)} if extra else {("different", missing, "name")}
    assert found(verified(world)) == differences


@pytest.mark.nightly  # the oracle verifies each audit after replays and a resync
def test_replay_and_resync_keep_the_audit_equal(world):
    world.create(rows=["(1, 'a')"])
    world.insert("(2, 'b')")
    run(world)
    run(world, command=Command("resync", "orders_audit"))
    assert len(world.audited("id")) == 4, "each epoch has its snapshot"
    world.insert("(3, 'c')")
    run(world)
    twice = verified(world)
    assert (twice.first_version, twice.comparison.rows, twice.comparison.kinds) == (2, 3, {})
    run(world, command=Command("replay", "orders_audit", 1))
    damage(world, "DELETE FROM {t} WHERE change_type = 'insert' AND id = 1")
    assert found(verified(world)) == {("missing", "1:insert:1", None)}, "the replayed versions are compared"
    run(world, command=Command("replay", "orders_audit", 1))
    replayed = verified(world)
    whole = (replayed.first_version, replayed.comparison.rows, replayed.comparison.kinds)
    assert whole == (1, 3, {}), "a replay appends what is missing"


def test_second_load_of_an_epoch_keeps_the_audit_equal(world):
    """The state path is restored from a copy of before the load, so that the route loads again in a later generation."""
    world.create(rows=["(1, 'a')", "(2, 'b')"])
    route = world.settings.routes["orders_audit"]
    sink = world.settings.sink(route.sink)
    pinned = start_position.resolve(route, world.source(), sink, world.state_path, world.letters)
    run(world)
    world.insert("(3, 'c')")
    run(world)
    shutil.rmtree(world.state_path.checkpoint("orders_audit", 0))
    world.state_path.save(replace(pinned, target_prepared=True))
    run(world)
    assert (world.state("orders_audit").generation, world.state("orders_audit").epoch) == (1, 1)
    whole = verified(world)
    assert (whole.first_version, whole.comparison.rows, whole.comparison.kinds) == (1, 3, {})
    damage(world, "DELETE FROM {t} WHERE id > 1")
    lacking = verified(world)
    assert found(lacking) == {("missing", "1:snapshot:2", None), ("missing", "2:insert:3", None)}
    replay, resync = summary(lacking)[-1].split("then run: ")
    assert "cdf-replicator replay orders_audit --starting-version 2 --ending-version 2 " in replay
    run(world, command=Command("replay", "orders_audit", 2, 2))
    lacking = verified(world)
    assert found(lacking) == {("missing", "1:snapshot:2", None)}
    assert resync in summary(lacking)[-1]
    run(world, command=Command("resync", "orders_audit"))
    again = verified(world)
    assert (again.snapshot_version, again.comparison.rows, again.comparison.kinds) == (2, 3, {})


def test_resync_that_is_killed_after_its_claim_loads_the_snapshot(world, monkeypatch):
    world.create(rows=["(1, 'a')", "(2, 'b')"])
    run(world)
    prepare = DeltaAuditSink.prepare

    def killed(sink, schema, route):
        prepare(sink, schema, route)
        raise PermanentError("the plug was pulled", "")

    with monkeypatch.context() as patched:
        patched.setattr(DeltaAuditSink, "prepare", killed)
        assert world.run("orders_audit", command=Command("resync", "orders_audit")) is not None
    assert (world.state("orders_audit").epoch, world.state("orders_audit").target_prepared) == (2, False)
    run(world)
    whole = verified(world)
    assert (whole.snapshot_version, whole.comparison.rows, whole.comparison.kinds) == (1, 2, {})
    assert world.audited("id") == [(1,), (1,), (2,), (2,)], "each epoch has its snapshot"


def test_rows_of_a_former_history_of_the_source_table_do_not_count(world):
    """The files of the source table are restored from a copy, and it gets other commits of the same versions."""
    world.create(rows=["(1, 'a')"])
    run(world)
    backup = world.folder / "backup"
    shutil.copytree(world.table, backup)
    world.insert("(2, 'same')")
    world.insert("(3, 'former')")
    run(world)
    shutil.rmtree(world.table)
    backup.rename(world.table)
    world.forget()
    run(world, command=Command("resync", "orders_audit"))
    world.insert("(2, 'same')")
    world.insert("(3, 'new')")
    run(world)
    assert verified(world).comparison.equal
    damage(world, "DELETE FROM {t} WHERE generation > 0 AND id = 2")
    assert found(verified(world)) == {("missing", "2:insert:2", None)}
    run(world, command=Command("replay", "orders_audit", 2, 2))
    assert verified(world).comparison.equal
    damage(world, "DELETE FROM {t} WHERE generation > 0 AND id = 2")
    shutil.rmtree(world.state_path.checkpoint("orders_audit", 1))
    run(world)
    assert world.state("orders_audit").generation == 2
    assert verified(world).comparison.equal
    assert (2, "same", 2) in world.audited("id", "name", "generation")


def test_changes_of_a_lost_state_path_count(world):
    world.create(rows=["(1, 'a')"])
    run(world)
    world.insert("(2, 'b')")
    run(world)
    world.environ["CDF_STATE_PATH"] = str(world.folder / "other")
    run(world, command=Command("resync", "orders_audit"))
    world.insert("(3, 'c')")
    run(world)
    assert verified(world).comparison.equal
    held = world.audited("id", "commit_version", "change_type")
    run(world, command=Command("replay", "orders_audit", 2))
    replayed = verified(world)
    assert (replayed.first_version, replayed.comparison.rows, replayed.comparison.kinds) == (2, 2, {})
    assert world.audited("id", "commit_version", "change_type") == held, "the replay appends no row twice"


def test_versions_that_the_feed_no_longer_has_are_not_compared(world):
    world.create(rows=["(1, 'a')", "(2, 'b')"])
    run(world)
    world.change("UPDATE {t} SET name = 'later'")
    world.change("DELETE FROM {t} WHERE id = 2")
    world.insert("(3, 'c')")
    run(world)
    world.vacuum()
    damage(world, "DELETE FROM {t} WHERE commit_version < 4 OR id = 3")
    left = verified(world)
    assert (left.first_version, left.comparison.rows) == (4, 1)
    assert found(left) == {("missing", "4:insert:3", None)}
    with pytest.raises(RouteHaltError, match="can no longer be read at version 3"):
        verified(world, at=3)


@pytest.mark.usefixtures("loaded")
def test_versions_before_log_cleanup_are_not_compared(world):
    world.insert("(2, 'b')")
    world.insert("(3, 'c')")
    run(world)
    world.forget_log_before(3)
    left = verified(world)
    assert (left.first_version, left.comparison.rows, left.comparison.kinds) == (3, 1, {})


def test_route_that_has_delivered_no_change_is_refused(world):
    world.environ["CDF_TABLES__ORDERS__STARTING_VERSION"] = "2"
    world.create(rows=["(1, 'a')"])
    world.insert("(2, 'b')")
    run(world)
    result = verified(world)
    assert (result.first_version, result.comparison.rows) == (2, 1)
    with pytest.raises(RouteHaltError, match="has delivered no change up to version 1: it begins at version 2"):
        verified(world, at=1)


@pytest.mark.usefixtures("loaded")
def test_change_with_an_open_dead_letter_must_be_absent(world):
    world.insert("(2, 'b')", "(NULL, 'c')", "(NULL, 'd')")
    run(world)
    route, source = world.settings.routes["orders_audit"], world.source()
    refused = change_frame.change_frame(source.changes(2, 2), route, epoch=1).where("row.name IN ('b', 'c')")
    batch = Batch(route.spec(owner="us", epoch=1), 0, 1, source.metadata.table_id)
    world.letters.add(refused.withColumns({"code": F.lit("odd"), "reason": F.lit("it is odd")}), route, batch)
    result = verified(world)
    assert result.dead_letters == 2
    assert found(result) == {("extra", "2:insert:2", None), ("extra", '2:insert:{"name":"c"}', None)}
    damage(world, "DELETE FROM {t} WHERE name IN ('b', 'c')")
    assert verified(world).comparison.equal


def test_older_and_narrower_schemas_are_compared_by_column(world):
    world.create("id bigint, x int, s struct<a:string,b:string>", delta__enableTypeWidening="true")
    world.insert("(1, 5, struct('a', 'b'))")
    run(world)
    world.sql("ALTER TABLE {t} ADD COLUMNS (s.c string AFTER a, price decimal(10,2))")
    world.insert("(2, 6, struct('a', 'c', 'b'), 1.5)")
    run(world)
    damage(world, "UPDATE {t} SET x = 7, s = named_struct('a', 'a', 'c', 'edited', 'b', 'b') WHERE id = 2")
    result = verified(world)
    assert (result.first_version, result.comparison.rows) == (1, 2)
    assert found(result) == {("different", "3:insert:2", "x"), ("different", "3:insert:2", "s")}
    world.sql("ALTER TABLE {t} ALTER COLUMN x TYPE bigint")
    world.insert("(3, 5000000000, NULL, NULL)")
    run(world)
    later = verified(world)
    assert later.comparison.equal
    assert later.first_version > 3, "a read of the feed has a single type for a column"
