"""Tests of rows joined with other tables: their values, the time of the join, and filters over joined columns."""

from __future__ import annotations

import json
import shutil

import pytest

from cdf_replicator.errors.exceptions import EnrichmentError, RouteHaltError
from cdf_replicator.queries import validation
from cdf_replicator.source.commit_log import CommitLog
from cdf_replicator.transform import change_frame
from cdf_replicator.transform.enrichment import Dimensions
from connectors import change
from tests.support import light_table
from tests.support.session import replaced

ROUTE = "CDF_ROUTES__ORDERS_FILES__"
CARRIERS = ROUTE + "ENRICH__CARRIERS__"
COLUMNS = "id bigint, carrier string, qty int"


@pytest.fixture
def carriers(world):
    """A table of carriers that the route joins; called, it runs SQL, in Spark only if it has to be. The table is ``{t}``."""
    path = str(world.folder / "carriers")
    world.environ |= {
        CARRIERS + "PATH": path,
        CARRIERS + "ON": "carrier=code",
        CARRIERS + "COLUMNS": "name=carrier_name,key",
    }

    def sql(statement):
        if not light_table.changed(path, statement):
            world.spark.sql(statement.replace("{t}", f"delta.`{path}`"))

    rows = ["('AA', 'American', 1, 'x')", "('UA', 'United', 2, 'x')", "(NULL, 'no code', 3, 'x')"]
    assert light_table.created(path, "code string, name string, key int, unused string", {})
    assert light_table.inserted(path, rows)
    return sql


def row(number, carrier, qty, name, key):
    return {"id": number, "carrier": carrier, "qty": qty, "carrier_name": name, "key": key}


def test_delivered_rows_get_the_newest_values_of_the_joined_table(world, carriers):
    world.create(COLUMNS, rows=["(1, 'AA', 1)", "(2, 'ZZ', 1)", "(3, NULL, 1)"])
    assert world.run() is None
    first, second = row(1, "AA", 1, "American", 1), row(2, "ZZ", 1, None, None)
    assert world.delivered() == {"1": first, "2": second, "3": row(3, None, 1, None, None)}, "a bootstrap joins too"
    carriers("UPDATE {t} SET name = 'Ace' WHERE code = 'AA'")
    assert light_table.inserted(str(world.folder / "carriers"), ["('ZZ', 'Zed', 9, 'x')"])
    world.insert("(4, 'AA', 1)")
    world.change("UPDATE {t} SET qty = 5 WHERE id = 3")
    world.change("DELETE FROM {t} WHERE id = 2")
    assert world.run() is None
    assert world.delivered() == {
        "1": first,  # it has not changed, so it keeps what it was delivered with
        "3": row(3, None, 5, None, None),
        "4": row(4, "AA", 1, "Ace", 1),
    }
    world.sql("UPDATE {t} SET qty = qty WHERE id = 1")
    world.change("UPDATE {t} SET id = 40 WHERE id = 4")
    assert world.run() is None
    assert world.delivered() == {
        "1": row(1, "AA", 1, "Ace", 1),
        "3": row(3, None, 5, None, None),
        "40": row(40, "AA", 1, "Ace", 1),
    }
    assert world.last_batch().received == {"update_preimage": 2, "update_postimage": 2}
    assert world.last_batch().applied == {"update_preimage": 1, "update_postimage": 2}


def test_row_that_fails_a_filter_over_joined_columns_becomes_a_delete(world, carriers):
    world.environ |= {ROUTE + "FILTER": "key < 3 AND qty > 0", ROUTE + "COLUMNS": "id,carrier_name"}
    world.environ[ROUTE + "COMPUTED"] = json.dumps({"label": "concat(carrier, ':', carrier_name)"})
    world.create(COLUMNS, rows=["(1, 'AA', 1)", "(2, 'UA', 1)", "(3, 'ZZ', 1)", "(4, 'UA', 0)"])
    assert world.run() is None
    united = {"id": 2, "carrier_name": "United", "label": "UA:United"}
    assert world.delivered() == {"1": {"id": 1, "carrier_name": "American", "label": "AA:American"}, "2": united}
    world.change("UPDATE {t} SET carrier = 'ZZ' WHERE id = 1")  # neither true nor false: out
    world.change("UPDATE {t} SET qty = 2 WHERE id = 4")  # in
    world.insert("(5, 'ZZ', 1)", "(6, 'UA', 1)", "(6, 'ZZ', 1)", "(7, 'UA', 1)", "(7, 'AA', 1)")
    assert world.run() is None
    assert world.delivered() == {"2": united, "4": united | {"id": 4}, "6": united | {"id": 6}}
    assert world.dead_letters("key", "code") == [("7", "duplicate_key")] * 2, "of key 6 one row passes, of key 7 two"
    batch = world.last_batch()
    passed = {"insert": 3, "update_preimage": 2, "update_postimage": 1, "delete": 1}
    assert batch.received == passed, "without the inserts that fail the filter"
    assert sum(batch.applied.values()) == 3, "as the sink got them"
    assert (batch.rejected, batch.superseded) == ({"duplicate_key": 1}, 2)
    assert batch.applied["update_postimage"] == 1
    carriers("UPDATE {t} SET key = 7 WHERE code = 'UA'")
    world.change("UPDATE {t} SET qty = 3 WHERE id = 4")
    world.change("DELETE FROM {t} WHERE id IN (3, 5, 6)")
    assert world.run() is None
    assert world.delivered() == {"2": united}, (
        "row 2 has not changed since; row 4 was filtered with the present carriers"
    )


def test_rows_that_fail_a_filter_over_joined_columns_count_as_duplicates(world, carriers):
    """A change of the row of ZZ deletes the entry of key 1, since its earlier carrier is unknown."""
    world.environ |= {ROUTE + "FILTER": "key < 3", "CDF_TABLES__ORDERS__ON_DUPLICATE_KEYS": "halt"}
    world.create(COLUMNS, rows=["(1, 'AA', 1)", "(1, 'ZZ', 1)"])
    decision = world.run()
    assert decision.reason == "duplicate_keys"
    assert "1 (2 rows). Rows that fail the filter over joined columns count too" in decision.message
    assert world.delivered() == {}
    (finding,) = validation._table(world.spark, world.settings, world.settings.routes["orders_files"])
    assert "(key columns id): 1 (1). Rows that fail the filter over joined columns count too" in finding.what


def frames(world, first=1):
    source, route = world.source(), world.settings.routes["orders_files"]
    dimensions = Dimensions(world.spark, route)
    schema = change_frame.row_schema(source.schema(), route, dimensions.columns(source.schema()))
    return (
        change_frame.change_frame(source.changes(first, source.log.latest_version()), route, epoch=1),
        route,
        dimensions,
        schema,
    )


def test_repeated_evaluation_of_a_micro_batch_reads_one_version(world, carriers):
    world.create(COLUMNS, rows=["(1, 'AA', 1)"])
    frame, route, dimensions, schema = frames(world)
    joined = dimensions.snapshot_join()
    finished = change_frame.project_joined(joined(frame), route)
    assert [field.name for field in schema] == finished.select("row.*").columns
    carriers("UPDATE {t} SET name = 'Ace'")
    for _ in range(2):
        assert [r["row"]["carrier_name"] for r in finished.collect()] == ["American"]
    assert [
        r["row"]["carrier_name"]
        for r in change_frame.project_joined(dimensions.snapshot_join()(frame), route).collect()
    ] == ["Ace"]
    assert "BroadcastHashJoin" in finished._jdf.queryExecution().executedPlan().toString(), "it is small"
    with replaced(world.spark, {"spark.sql.autoBroadcastJoinThreshold": "10"}):
        plan = change_frame.project_joined(joined(frame), route)._jdf.queryExecution().executedPlan().toString()
    assert "BroadcastHashJoin" not in plan
    carriers("ALTER TABLE {t} SET TBLPROPERTIES (delta.columnMapping.mode = 'name')")
    carriers("ALTER TABLE {t} RENAME COLUMN name TO title")
    with pytest.raises(EnrichmentError) as caught:
        dimensions.snapshot_join()
    assert (caught.value.decision.action, caught.value.decision.reason) == ("restart", "schema_change")


def test_joined_table_recreated_at_the_checked_version_is_checked_again(world, carriers):
    world.create(COLUMNS, rows=["(1, 'AA', 1)"])
    frame, _, dimensions, _ = frames(world)
    assert dimensions.snapshot_join()(frame).count() == 1
    shutil.rmtree(world.folder / "carriers")
    carriers("CREATE TABLE {t} (code string, name string, key int, unused string) USING delta")
    carriers("INSERT INTO {t} VALUES ('AA', 'Ace', 1, 'x'), ('AA', 'Able', 2, 'x')")
    with pytest.raises(
        RouteHaltError, match=r"code does not identify a row.* at version 1 there are several of \('AA',\)"
    ):
        dimensions.snapshot_join()


def test_joined_table_whose_name_gets_another_location_is_checked_again(world, carriers):
    """The versions of the tables are equal, so that only their locations differ for the route."""
    world.create(COLUMNS, rows=["(1, 'AA', 1)"])
    own = "code string, name string, key int, unused string"
    tables = {
        "other": (own, ["('AA', 'Ace', 1, 'x')"]),
        "twins": (own, ["('AA', 'Ace', 1, 'x')", "('AA', 'Able', 2, 'x')"]),
        "retyped": (own.replace("key int", "key string"), ["('AA', 'Ace', '1', 'x')"]),
    }
    for name, (columns, rows) in tables.items():
        assert light_table.created(str(world.folder / name), columns, {})
        assert light_table.inserted(str(world.folder / name), rows)
    world.spark.sql(f"CREATE TABLE moving USING delta LOCATION '{world.folder / 'carriers'}'")
    try:
        del world.environ[CARRIERS + "PATH"]
        world.environ[CARRIERS + "NAME"] = "moving"
        frame, _, dimensions, _ = frames(world)

        def create(name):
            world.spark.sql("DROP TABLE moving")
            world.spark.sql(f"CREATE TABLE moving USING delta LOCATION '{world.folder / name}'")

        def names():
            return [found["row"]["carrier_name"] for found in dimensions.snapshot_join()(frame).collect()]

        assert names() == ["American"]
        world.spark.sql(f"ALTER TABLE moving SET LOCATION '{world.folder / 'other'}'")
        assert names() == ["Ace"]
        create("twins")
        with pytest.raises(RouteHaltError, match="code does not identify a row"):
            names()
        create("retyped")
        with pytest.raises(EnrichmentError, match="a joined column changed its type"):
            names()
    finally:
        world.spark.sql("DROP TABLE moving")


def test_rows_with_changed_join_keys_or_odd_names_are_joined(world, carriers):
    path = str(world.folder / "odd")
    world.spark.sql(
        f"CREATE TABLE delta.`{path}` (`the code` string, `na.me``s` string) USING delta "
        "TBLPROPERTIES (delta.columnMapping.mode = 'name')"
    )
    world.spark.sql(f"INSERT INTO delta.`{path}` VALUES ('AA', 'odd')")
    odd = {"PATH": path, "ON": '{"a.b": "the code"}', "COLUMNS": '{"na.me`s": "na.me`s"}'}
    world.environ |= {f"{ROUTE}ENRICH__ODD__{name}": value for name, value in odd.items()}
    world.environ[ROUTE + "ENRICH__CARRIERS__ON"] = '{"a.b": "code"}'
    world.environ[ROUTE + "ENRICH__CARRIERS__COLUMNS"] = "name=guard"
    world.environ[ROUTE + "FILTER"] = "`na.me``s` IS NOT NULL"
    world.create(
        "id bigint, `a.b` string, `row` int, change_type string", rows=["(1, 'AA', 2, 't')", "(2, 'UA', 3, 'u')"]
    )
    frame, route, dimensions, _ = frames(world)
    (found,) = change_frame.project_joined(dimensions.snapshot_join()(frame), route).collect()
    values = {"id": 1, "a.b": "AA", "row": 2, "change_type": "t", "guard": "American", "na.me`s": "odd"}
    assert (found[change.KEY], found[change.CHANGE_TYPE], found["row"].asDict()) == ("1", "insert", values)


def test_join_columns_of_type_char_and_different_lengths_are_padded(world):
    path = str(world.folder / "padded")
    world.spark.sql(f"CREATE TABLE delta.`{path}` (code char(5), name string) USING delta")
    world.spark.sql(f"INSERT INTO delta.`{path}` VALUES ('AA', 'American')")
    world.environ |= {CARRIERS + "PATH": path, CARRIERS + "ON": "carrier=code", CARRIERS + "COLUMNS": "name"}
    world.create("id bigint, carrier char(3)", rows=["(1, 'AA')"])
    assert world.run() is None
    world.insert("(2, 'AA')", "(3, 'UA')")
    assert world.run() is None
    assert [found["name"] for _, found in sorted(world.delivered().items())] == ["American", "American", None]


def test_incompatible_joined_table_halts_before_any_write(world, carriers):
    world.create(COLUMNS + ", carrier_id int", rows=["(1, 'AA', 1, 1)"])
    wrong = {
        "ON": ("carrier=nope", "it has no column nope; it has code, name, key, unused"),
        "COLUMNS": ("qty=x", "it has no column qty"),
    }
    for setting, (value, why) in wrong.items():
        kept, world.environ[CARRIERS + setting] = world.environ[CARRIERS + setting], value
        with pytest.raises(RouteHaltError, match=why):
            frames(world)
        world.environ[CARRIERS + setting] = kept
    for value, why in {
        "nope=code": "table orders does not have",
        "carrier_id=code": "carrier_id is int and code is",
    }.items():
        world.environ[CARRIERS + "ON"] = value
        with pytest.raises(RouteHaltError, match=why):
            frames(world)
    world.environ |= {CARRIERS + "ON": "carrier=code", CARRIERS + "COLUMNS": "name=QTY"}
    with pytest.raises(RouteHaltError, match="joins a column QTY, qty, and table orders has one of that name already"):
        frames(world)
    more = ["('AA', 'again', 1, 'x')", "(NULL, 'no code', 4, 'x')"]
    assert light_table.inserted(str(world.folder / "carriers"), more)
    world.environ[CARRIERS + "COLUMNS"] = "name=carrier_name"
    decision = world.run()
    assert (decision.action, decision.reason) == ("halt", "bad_dimension")
    assert "code does not identify a row, so that joined rows would multiply" in decision.message
    assert "('AA',) (2 rows)" in decision.message
    assert world.delivered() == {}
    (finding,) = validation._table(world.spark, world.settings, world.settings.routes["orders_files"])
    assert "('AA',) (2 rows)" in finding.what
    carriers("DELETE FROM {t} WHERE name = 'again'")
    assert world.run() is None
    assert [found["carrier_name"] for found in world.delivered().values()] == ["American"]


def test_fault_of_the_joined_table_is_not_attributed_to_an_added_column(world, carriers):
    world.create(COLUMNS, rows=["(1, 'AA', 1)"], delta__columnMapping__mode="name")
    assert world.run() is None
    carriers("ALTER TABLE {t} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')")
    carriers("ALTER TABLE {t} RENAME COLUMN name TO title")
    world.sql("ALTER TABLE {t} ADD COLUMN extra int")
    world.insert("(2, 'AA', 1, 1)")
    decision = world.run()
    assert (decision.action, decision.reason) == ("halt", "bad_dimension"), decision.message
    assert "it has no column name; it has code, title, key, unused" in decision.message


def test_joined_table_recreated_during_its_read_is_retried(world, carriers, monkeypatch):
    world.create(COLUMNS, rows=["(1, 'AA', 1)"])
    dimensions = frames(world)[2]
    home, listed = world.folder / "carriers", CommitLog.available

    def recreated(log):
        """Recreate the table, as another process does between two reads of the route."""
        found = listed(log)
        shutil.rmtree(home)
        assert light_table.created(str(home), "code string, name string, key int, unused string", {})
        return found

    with monkeypatch.context() as patch:
        patch.setattr(CommitLog, "available", recreated)
        with pytest.raises(EnrichmentError) as caught:
            dimensions.snapshot_join()
    assert (caught.value.decision.action, caught.value.decision.reason) == ("wait", "start_out_of_range")
    assert light_table.inserted(str(home), ["('AA', 'Ace', 1, 'x')"])
    for file in home.glob("*.parquet"):
        file.write_bytes(b"a part of a file")
    with pytest.raises(EnrichmentError) as caught:
        dimensions.snapshot_join()
    assert (caught.value.decision.action, caught.value.decision.reason) == ("wait", "read_failed")


def test_joined_file_that_vanishes_during_a_write_is_waited_for(world, carriers, monkeypatch):
    """The first action of the load that reads it is the search for rows that share a key."""
    world.create(COLUMNS, rows=["(1, 'AA', 1)", "(9, 'AA', 1)", "(9, 'AA', 1)"])
    home, away, join = world.folder / "carriers", world.folder / "away", Dimensions.snapshot_join
    away.mkdir()
    writes = []

    def vanished(dimensions):
        """Remove the files after the join is planned, while the source gets a newer version than the pinned version."""
        planned = join(dimensions)
        writes.append(dimensions)
        for file in home.glob("*.parquet"):
            shutil.move(file, away)
        world.insert(f"({len(writes) + 1}, 'AA', 1)")
        return planned

    for number in (1, 2):  # in the load, then in a micro-batch
        with monkeypatch.context() as patch:
            patch.setattr(Dimensions, "snapshot_join", vanished)
            decision = world.run()
        assert (decision.action, decision.reason) == ("wait", "history_lost")
        assert f"Table carriers ({home}), which route orders_files joins: [FAILED_READ_FILE" in decision.message
        assert len(writes) == number, "the first failure names the joined table"
        for file in away.iterdir():
            shutil.move(file, home)
        if number == 1:
            assert (world.state().epoch, world.state().pinned_version) == (1, 1)
            assert world.run() is None
            world.insert("(4, 'AA', 1)")
    assert world.run() is None
    assert world.delivered().keys() == {"1", "2", "3", "4"}
    assert world.state().epoch == 1


def test_missing_joined_table_is_retried(world, carriers):
    world.create(COLUMNS, rows=["(1, 'AA', 1)"])
    home = world.folder / "carriers"
    shutil.move(home, world.folder / "moved")
    decision = world.run()
    assert (decision.action, decision.reason) == ("wait", "table_missing")
    assert f"Table carriers ({home}), which route orders_files joins: " in decision.message
    shutil.move(world.folder / "moved", home)
    first = home / "_delta_log" / f"{0:020d}.json"
    content = first.read_bytes()
    first.unlink()
    world.forget()
    decision = world.run()
    assert (decision.action, decision.reason) == ("wait", "history_lost"), "as in the middle of DROP and CREATE"
    assert "the route waits for it" in decision.remedy
    first.write_bytes(content)
    world.forget()
    assert world.run() is None
    assert world.delivered() == {"1": row(1, "AA", 1, "American", 1)}
