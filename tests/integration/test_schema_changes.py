"""A route follows a change of its source table's columns, or halts with a reason and recovers by a command."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
import redis

from cdf_replicator.pipeline.streaming_query import StreamingQueryRunner
from cdf_replicator.state.command_queue import Command
from tests.support import light_table
from tests.support.light_table import added_rows
from tests.support.tiers import nightly
from tests.support.waiting import until

MAPPED = {"delta__columnMapping__mode": "name"}
OVERWRITE = {"overwriteSchema": "true"}


@pytest.fixture
def started(prepared):
    return prepared(priced)


def priced(world):
    world.create("id bigint, name string, price int", rows=["(1, 'a', 10)", "(2, 'b', 20)"])
    assert world.run() is None


@pytest.fixture
def mapped(prepared):
    return prepared(mapped_rows)


def mapped_rows(world):
    world.create("id bigint, name string, price int", rows=["(1, 'a', 10)", "(2, 'b', 20)", "(3, 'c', 30)"], **MAPPED)
    assert world.run() is None


def halted(world, *words):
    decision = world.run()
    assert decision is not None
    assert (decision.action, decision.reason) == ("halt", "schema_change")
    assert world.board.snapshot().routes[0].state == "halted"
    for word in words:
        assert word in f"{decision.message} {decision.remedy}"
    return decision


def committed_rows(table):
    """Return the number of rows that commits have added to a table, without a query."""
    return sum(map(added_rows, Path(table, "_delta_log").glob("[0-9]*.json")))


def resynced(world):
    command = Command("resync", "orders_files")
    assert world.run(command=command) is None
    assert world.answer(command).state == "done"
    assert world.delivered() == world.expected()


@pytest.mark.nightly  # the histories of the oracle add and widen columns under every sink
def test_three_sinks_follow_a_growing_table_while_they_run(world, live, elasticsearch, redis_server):
    world.environ |= {
        "CDF_TABLES__ORDERS__SINKS": "search,cache,audit",
        "CDF_SINKS__SEARCH__TYPE": "elasticsearch",
        "CDF_SINKS__SEARCH__HOSTS": elasticsearch.url,
        "CDF_SINKS__CACHE__TYPE": "redis",
        "CDF_SINKS__CACHE__URL": redis_server.url,
        "CDF_SINKS__AUDIT__TYPE": "delta_audit",
        "CDF_SINKS__AUDIT__PATH": str(world.folder / "audit"),
        "CDF_TRIGGER_SECONDS": "1",  # each trigger of the three routes takes processor time
    }
    world.create(
        "id bigint, name string NOT NULL, qty int, box struct<a: int>",
        rows=["(1, 'a', 10, null)"],
        delta__enableTypeWidening="true",
    )
    client = redis.Redis.from_url(redis_server.url)

    def searched():
        httpx.post(f"{elasticsearch.url}/orders/_refresh")
        found = httpx.get(f"{elasticsearch.url}/orders/_search", params={"size": 100})
        return {hit["_id"]: hit["_source"] for hit in found.json()["hits"]["hits"]} if found.is_success else {}

    def cached():
        held = {key.decode().removeprefix("orders:"): client.get(key) for key in client.scan_iter("orders:*")}
        return {key: json.loads(value) for key, value in held.items() if value}

    def filled(rows):
        """Return the rows with null in columns that were added after a row was written."""
        names = [field.name for field in world.spark.read.format("delta").load(world.table).schema]
        return {key: {**dict.fromkeys(names), **row} for key, row in rows.items()}

    def audited():
        frame = world.spark.read.format("delta").load(world.audit)
        return {row["id"]: row.asDict(recursive=True) for row in frame.collect()}

    def in_step():
        want = {str(row["id"]): row.asDict(recursive=True) for row in world.sql("SELECT * FROM {t}").collect()}
        kept = {str(key): {name: row.get(name) for name in want[str(key)]} for key, row in audited().items()}
        return filled(searched()) == want and filled(cached()) == want and kept == want

    def arrived(number):
        """Wait for a row in the two servers, which answer sooner than Spark."""
        until(lambda: str(number) in cached() and str(number) in searched())

    live("orders_search", "orders_cache", "orders_audit")
    arrived(1)

    world.sql("ALTER TABLE {t} ADD COLUMNS (price int, box.b string)")
    world.insert("(2, 'b', 20, struct(2, 'x'), 200)")
    arrived(2)
    assert cached()["2"]["box"] == searched()["2"]["box"] == {"a": 2, "b": "x"}
    until(lambda: committed_rows(world.audit) == 2 and in_step())
    row = world.spark.sql("SELECT 3L id, 'c' name, 30 qty, named_struct('a', 3, 'b', 'y') box, 300 price, true paid")
    row.write.format("delta").mode("append").option("mergeSchema", "true").save(world.table)
    arrived(3)
    assert cached()["3"]["paid"] is searched()["3"]["paid"] is True

    world.sql("ALTER TABLE {t} ALTER COLUMN qty TYPE bigint")
    world.sql("ALTER TABLE {t} ALTER COLUMN box.a TYPE bigint")
    world.sql("INSERT INTO {t} VALUES (4, 'd', 5000000000, struct(6000000000, 'z'), 400, false)")
    arrived(4)
    assert cached()["4"]["qty"] == searched()["4"]["qty"] == 5_000_000_000
    mapping = httpx.get(f"{elasticsearch.url}/orders/_mapping").json()["orders"]["mappings"]["properties"]
    assert {name: mapping[name].get("type") for name in ("qty", "price", "paid")} == {
        "qty": "long",
        "price": "long",
        "paid": "boolean",
    }

    for harmless in (
        "ALTER COLUMN price FIRST",
        "ALTER COLUMN price COMMENT 'in cents'",
        "ALTER COLUMN name DROP NOT NULL",
        "ADD CONSTRAINT some CHECK (id > 0)",
        "SET TBLPROPERTIES ('delta.logRetentionDuration' = 'interval 40 days', 'mine' = 'x')",
    ):
        world.sql(f"ALTER TABLE {{t}} {harmless}")
    world.sql("INSERT INTO {t} (id, name, qty, price) VALUES (5, null, 50, 500)")
    arrived(5)

    until(lambda: committed_rows(world.audit) == 5)
    held = audited()
    assert held[4]["qty"] == 5_000_000_000
    assert held[4]["box"] == {"a": 6_000_000_000, "b": "z"}
    assert (len(held), held[1]["price"]) == (5, None)
    assert (
        searched()["5"] == cached()["5"] == {"price": 500, "id": 5, "name": None, "qty": 50, "box": None, "paid": None}
    )


def test_a_renamed_column_waits_for_its_approval_and_then_goes_on(mapped):
    mapped.sql("ALTER TABLE {t} RENAME COLUMN price TO cost")
    mapped.insert("(4, 'd', 40)")
    version = mapped.version() - 1
    mapped.environ["CDF_TABLES__ORDERS__ALLOW_SCHEMA_CHANGE"] = str(version - 1)
    decision = halted(mapped, "renamed column price to cost", f"at version {version}")
    assert (
        f"set CDF_TABLES__ORDERS__ALLOW_SCHEMA_CHANGE={version}, then restart, or reload a changed file: cdf-replicator reload"
        in decision.remedy
    )
    assert "resync orders_files" in decision.remedy
    assert mapped.delivered().keys() == {"1", "2", "3"}

    mapped.environ["CDF_TABLES__ORDERS__ALLOW_SCHEMA_CHANGE"] = str(version)
    assert mapped.run() is None
    assert mapped.delivered()["4"] == {"id": 4, "name": "d", "cost": 40}
    assert mapped.delivered()["1"] == {"id": 1, "name": "a", "price": 10}, "until it changes, or a resync"
    del mapped.environ["CDF_TABLES__ORDERS__ALLOW_SCHEMA_CHANGE"]
    mapped.change("UPDATE {t} SET cost = 11 WHERE id = 1")
    assert mapped.run() is None, "an approval that was used is not needed again"
    assert mapped.delivered()["1"] == {"id": 1, "name": "a", "cost": 11}

    mapped.sql("ALTER TABLE {t} DROP COLUMN name")
    mapped.insert("(5, 50)")
    decision = halted(mapped, "dropped column name", f"ALLOW_SCHEMA_CHANGE={mapped.version() - 1}")
    mapped.environ["CDF_TABLES__ORDERS__ALLOW_SCHEMA_CHANGE"] = "always"
    assert mapped.run() is None
    assert mapped.delivered()["5"] == {"id": 5, "cost": 50}


def test_replay_over_an_added_column_needs_no_commit_of_the_former_columns(world):
    """Log cleanup has removed the commit that created the table, as of every table older than the log's retention."""
    world.create(rows=["(1, 'a')"], **MAPPED)
    world.forget_log_before(world.version())
    assert world.run() is None
    world.insert("(2, 'b')")
    world.sql("ALTER TABLE {t} ADD COLUMN extra int")
    world.insert("(3, 'c', 3)")
    assert world.run() is None
    before, command = world.delivered(), Command("replay", "orders_files", 2)
    assert world.run(command=command) is None
    assert (world.answer(command).state, world.delivered()) == ("done", before)


def test_rename_during_a_load_that_is_repeated_waits_for_its_approval(world):
    """Log cleanup has removed the commit of the loaded columns, so that only their version can show that the rename is later."""
    world.create("id bigint, name string, price int", rows=["(1, 'a', 10)", "(2, 'b', 20)"], **MAPPED)
    world.forget_log_before(world.version())
    world.trouble("1")
    assert world.run().reason == "bug"
    world.trouble(None)
    world.sql("ALTER TABLE {t} RENAME COLUMN price TO cost")
    version = world.version()
    world.insert("(3, 'c', 30)")
    halted(world, "column price", f"at version {version}", f"ALLOW_SCHEMA_CHANGE={version},")
    world.environ["CDF_TABLES__ORDERS__ALLOW_SCHEMA_CHANGE"] = str(version)
    assert world.run() is None
    assert world.delivered()["3"] == {"id": 3, "name": "c", "cost": 30}


def test_column_added_under_the_name_of_a_removed_column_halts(mapped):
    mapped.sql("ALTER TABLE {t} DROP COLUMN price")
    mapped.sql("ALTER TABLE {t} RENAME COLUMN name TO title")
    mapped.insert("(4, 'd')")
    halted(mapped, "dropped column price")
    mapped.environ["CDF_TABLES__ORDERS__ALLOW_SCHEMA_CHANGE"] = "always"
    assert mapped.run() is None
    mapped.insert("(5, 'e')")
    assert mapped.run() is None
    mapped.sql("ALTER TABLE {t} ADD COLUMNS (price int, name string)")
    mapped.insert("(6, 'f', 60, 'F')")
    decision = halted(mapped, "replaced column name", "replaced column price", f"at version {mapped.version() - 1}")
    assert decision.remedy == "Run: cdf-replicator resync orders_files"
    assert mapped.delivered()["1"] == {"id": 1, "name": "a", "price": 10}
    mapped.environ["CDF_ROUTES__ORDERS_FILES__SCHEMA_CHANGES"] = "ignore"
    assert mapped.run() is None, "the route delivers none of the new columns"
    assert mapped.delivered()["6"] == {"id": 6, "title": "f"}


def test_column_renamed_to_the_name_of_a_dropped_column_halts(mapped):
    mapped.environ["CDF_TABLES__ORDERS__ALLOW_SCHEMA_CHANGE"] = "always"
    mapped.sql("ALTER TABLE {t} DROP COLUMN price")
    mapped.insert("(4, 'd')")
    assert mapped.run() is None
    mapped.sql("ALTER TABLE {t} RENAME COLUMN name TO price")
    mapped.insert("(5, 'e')")
    decision = halted(mapped, "replaced column price", f"at version {mapped.version() - 1}")
    assert decision.remedy == "Run: cdf-replicator resync orders_files"


def test_redrive_names_the_version_of_a_rename_and_is_executed_once_approved(mapped):
    mapped.insert("(4, 'bad', 40)")
    assert mapped.run() is None
    mapped.sql("ALTER TABLE {t} RENAME COLUMN price TO cost")
    version = mapped.version()
    for row in ("(5, 'e', 50)", "(6, 'f', 60)"):
        mapped.insert(row)
    mapped.change("UPDATE {t} SET name = 'good' WHERE id = 4")
    command = Command("redrive", "orders_files")
    mapped.run(command=command)
    answer = mapped.answer(command)
    assert (answer.state, f"ALLOW_SCHEMA_CHANGE={version}," in answer.message) == ("failed", True)
    mapped.environ["CDF_TABLES__ORDERS__ALLOW_SCHEMA_CHANGE"] = str(version)
    command = Command("redrive", "orders_files")
    assert mapped.run(command=command) is None
    assert mapped.answer(command).message.startswith("1 keys written")
    assert mapped.delivered()["4"] == {"id": 4, "name": "good", "cost": 40}


DROPPED = {
    "KEYS": ("CDF_TABLES__ORDERS__KEYS", "id", "order_id", "RENAME COLUMN id TO order_id"),
    "FILTER": ("CDF_ROUTES__ORDERS_FILES__FILTER", "price > 15", "cost > 15", "RENAME COLUMN price TO cost"),
    "COLUMNS": ("CDF_ROUTES__ORDERS_FILES__COLUMNS", "name,note", "name", "DROP COLUMN note"),
}
"""Settings that name a column, before and after a change of the table, and the change."""


@pytest.mark.parametrize("changed", [tuple(DROPPED), *(nightly((name,)) for name in DROPPED)])
def test_resync_applies_a_definition_corrected_after_a_dropped_column(world, changed):
    variables, before, after, statements = zip(*(DROPPED[name] for name in changed), strict=True)
    world.environ |= dict(zip(variables, before, strict=True))
    world.create(
        "id bigint, price int, name string, note string", rows=["(1, 10, 'a', 'x')", "(2, 20, 'b', 'y')"], **MAPPED
    )
    assert world.run() is None
    for statement in statements:
        world.sql(f"ALTER TABLE {{t}} {statement}")
    world.change("DELETE FROM {t} WHERE true")
    halted(world, statements[0].split()[2], "resync orders_files")
    world.environ |= dict(zip(variables, after, strict=True))
    command = Command("resync", "orders_files")
    assert world.run(command=command) is None
    assert world.delivered() == {}


@pytest.mark.parametrize("kind", [nightly("replica"), "audit"])
def test_column_without_a_type_has_one_after_a_resync(world, kind):
    world.into_delta(kind)
    route = f"orders_{kind}"
    world.sql(
        "CREATE TABLE {t} (id bigint, note void) USING delta TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')"
    )
    world.sql("INSERT INTO {t} (id) VALUES (1)")
    assert world.run(route) is None
    typed = world.spark.sql("SELECT CAST(2 AS bigint) AS id, 'a' AS note")
    typed.write.format("delta").mode("append").option("mergeSchema", "true").save(world.table)
    assert world.run(route).reason == "schema_change"
    assert world.run(route, command=Command("resync", route)) is None
    target = str(world.folder / kind / "orders")
    assert {(row["id"], row["note"]) for row in light_table.read(target, ["id", "note"])} == {(1, None), (2, "a")}
    world.sql("INSERT INTO {t} VALUES (3, 'b')")
    assert world.run(route) is None
    assert {"id": 3, "note": "b"} in light_table.read(target, ["id", "note"])


def test_column_mapping_enabled_under_a_route_is_followed(started, live):
    (runner,) = live("orders_files")
    started.sql(
        "ALTER TABLE {t} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name', "
        "'delta.minReaderVersion' = '2', 'delta.minWriterVersion' = '5')"
    )
    started.insert("(3, 'c', 30)")
    until(lambda: "3" in started.delivered())
    started.sql("ALTER TABLE {t} RENAME COLUMN price TO cost")
    started.insert("(4, 'd', 40)")
    until(lambda: runner.failure is not None)
    assert "renamed column price to cost" in runner.failure.message
    started.environ["CDF_TABLES__ORDERS__ALLOW_SCHEMA_CHANGE"] = "always"
    (again,) = live("orders_files")
    until(lambda: started.delivered().get("4") == {"id": 4, "name": "d", "cost": 40})
    assert again.failure is None


@pytest.mark.parametrize(
    ("query", "by", "words"),
    [
        pytest.param(
            *("SELECT id, name, string(price) price FROM {t}", (), "retyped column price from integer to string"),
            marks=pytest.mark.nightly,  # the type of the key changes below
        ),
        ("SELECT id, name, price FROM {t}", ("name",), "repartitioned partition columns from none to name"),
        ("SELECT id, name FROM {t}", (), "dropped column price"),
        ("SELECT string(id) id, name, price FROM {t}", (), "retyped column id from long to string"),
    ],
)
def test_schema_change_that_blocks_a_stream_halts_until_a_resync(started, query, by, words):
    writer = started.sql(query).coalesce(1).write.format("delta").mode("overwrite").options(**OVERWRITE)
    writer.partitionBy(*by).save(started.table) if by else writer.save(started.table)
    decision = halted(started, words, f"at version {started.version()}")
    assert decision.remedy == "Run: cdf-replicator resync orders_files"
    resynced(started)


def test_column_dropped_during_a_run_is_not_delivered_as_null(started, live):
    (runner,) = live("orders_files")
    started.insert("(3, 'c', 30)")
    until(lambda: "3" in started.delivered())
    rows = started.spark.createDataFrame([(1, "aa"), (4, "d")], "id long, name string")
    rows.write.format("delta").mode("overwrite").options(**OVERWRITE).save(started.table)
    until(lambda: runner.failure is not None)
    assert (runner.failure.action, runner.failure.reason) == ("halt", "schema_change")
    assert "dropped column price" in runner.failure.message
    assert started.delivered()["1"] == {"id": 1, "name": "a", "price": 10}
    resynced(started)


def test_columns_changed_between_plan_and_start_of_a_query_are_delivered(world, monkeypatch):
    """Spark takes columns by their position and with the types of the plan, and raises nothing."""
    world.create("id bigint, qty int, price int", rows=["(1, 1, 10)"], delta__enableTypeWidening="true")
    meanwhile, follow = [], StreamingQueryRunner.follow

    def followed(*arguments):
        while meanwhile:
            world.sql(meanwhile.pop(0))
        return follow(*arguments)

    monkeypatch.setattr(StreamingQueryRunner, "follow", followed)
    for key, change, row in (
        ("2", "ALTER COLUMN qty AFTER price", {"id": 2, "price": 20, "qty": 200}),
        ("3", "ALTER COLUMN qty TYPE bigint", {"id": 3, "price": 30, "qty": 5_000_000_000}),
        ("4", "ADD COLUMN paid boolean", {"id": 4, "price": 40, "qty": 400, "paid": True}),
    ):
        values = ", ".join(map(str, row.values()))
        meanwhile[:] = f"ALTER TABLE {{t}} {change}", f"INSERT INTO {{t}} VALUES ({values})"
        world.files = world.folder / f"files{key}"
        world.files.mkdir()
        world.environ |= {
            "CDF_SINKS__FILES__PATH": str(world.files),
            "CDF_STATE_PATH": str(world.folder / f"state{key}"),
        }
        assert world.run() is None
        assert world.delivered()[key] == row


def test_insert_into_identity_table_at_a_start_does_not_restart_it(world, monkeypatch):
    """Each such commit has the table's metadata, with a new highest value of the identity column."""
    world.sql(
        "CREATE TABLE {t} (id bigint GENERATED ALWAYS AS IDENTITY, name string) USING delta "
        "TBLPROPERTIES (delta.enableChangeDataFeed = true)"
    )
    world.sql("INSERT INTO {t} (name) VALUES ('a')")
    starts, follow = [], StreamingQueryRunner.follow

    def followed(*arguments):
        starts.append(world.version())
        if len(starts) <= 8:
            world.sql("INSERT INTO {t} (name) VALUES ('b')")
        return follow(*arguments)

    monkeypatch.setattr(StreamingQueryRunner, "follow", followed)
    assert world.run() is None
    assert starts == [1]
    assert world.delivered() == world.expected()
    assert len(world.delivered()) == 2


def test_temporarily_disabled_change_feed_is_detected(started, live):
    started.insert("(3, 'c', 30)")
    assert started.run() is None
    started.insert("(4, 'd', 40)")
    started.sql("ALTER TABLE {t} SET TBLPROPERTIES (delta.enableChangeDataFeed = false)")
    off = started.version()
    started.change("UPDATE {t} SET name = 'x' WHERE id = 1")
    started.sql("ALTER TABLE {t} SET TBLPROPERTIES (delta.enableChangeDataFeed = true)")
    decision = started.run()
    assert (decision.action, decision.reason) == ("halt", "change_feed_off")
    assert f"was off at version {off}" in decision.message
    assert "Run: cdf-replicator enable orders." in decision.remedy
    resynced(started)
    (runner,) = live("orders_files")
    started.sql("ALTER TABLE {t} SET TBLPROPERTIES (delta.enableChangeDataFeed = false)")
    until(lambda: runner.failure is not None)
    assert (runner.failure.action, runner.failure.reason) == ("halt", "change_feed_off")
    assert (
        "Run: cdf-replicator enable " in runner.failure.remedy
    )  # of the driver or of Delta, whose condition names no table


def test_route_configured_to_fail_halts_before_it_delivers_new_columns(started):
    started.environ["CDF_ROUTES__ORDERS_FILES__SCHEMA_CHANGES"] = "fail"
    started.insert("(3, 'c', 30)")
    assert started.run() is None
    started.sql("ALTER TABLE {t} ADD COLUMN paid boolean")
    version = started.version()
    started.insert("(4, 'd', 40, true)")
    halted(started, "added column paid", f"ALLOW_SCHEMA_CHANGE={version},", "SCHEMA_CHANGES=add")
    assert started.delivered().keys() == {"1", "2", "3"}
    started.environ["CDF_TABLES__ORDERS__ALLOW_SCHEMA_CHANGE"] = str(version)
    assert started.run() is None
    assert started.delivered()["4"] == {"id": 4, "name": "d", "price": 40, "paid": True}


def test_route_configured_to_ignore_delivers_the_first_columns_of_its_epoch(world):
    world.environ["CDF_ROUTES__ORDERS_FILES__SCHEMA_CHANGES"] = "ignore"
    columns = "id bigint, box struct<a: int>, boxes array<struct<a: int>>, named map<string, struct<a: int>>"
    row = "({0}, struct({0}{1}), array(struct({0}{1})), map('k', struct({0}{1})))"
    world.create(columns, rows=[row.format(1, "")], **MAPPED)
    assert world.run() is None
    for path in ("box.b", "boxes.element.b", "named.value.b"):
        world.sql(f"ALTER TABLE {{t}} ADD COLUMN {path} int")
    world.insert(row.format(2, ", 9"), "(3, null, null, null)")
    world.sql("ALTER TABLE {t} ADD COLUMN paid boolean")
    world.change("UPDATE {t} SET paid = true WHERE id = 1")
    assert world.run() is None
    rows = {key: {"id": key, "box": {"a": key}, "boxes": [{"a": key}], "named": {"k": {"a": key}}} for key in (1, 2)}
    assert world.delivered() == {
        "1": rows[1], "2": rows[2], "3": {"id": 3, "box": None, "boxes": None, "named": None},
    }  # fmt: skip
    command = Command("resync", "orders_files")
    assert world.run(command=command) is None
    assert world.delivered()["1"]["paid"] is True, "a new epoch begins with the columns of today"


def test_ignored_column_may_have_the_name_of_a_computed_column(world):
    world.environ["CDF_ROUTES__ORDERS_FILES__SCHEMA_CHANGES"] = "ignore"
    world.environ["CDF_ROUTES__ORDERS_FILES__COMPUTED"] = json.dumps({"total": "price * 2"})
    world.create("id bigint, price int", rows=["(1, 10)"], **MAPPED)
    assert world.run() is None
    world.sql("ALTER TABLE {t} ADD COLUMN total int")
    world.insert("(2, 20, 7)")
    assert world.run() is None
    rows = {"1": {"id": 1, "price": 10, "total": 20}, "2": {"id": 2, "price": 20, "total": 40}}
    assert world.delivered() == rows
    command = Command("replay", "orders_files", starting_version=1)
    assert world.run(command=command) is None
    assert world.answer(command).state == "done"
    assert world.delivered() == rows


def test_two_renames_that_change_the_case_of_a_name_wait_for_approval(world):
    world.create("id bigint, Name string", rows=["(1, 'a')"], **MAPPED)
    assert world.run() is None
    before = world.state_path.load("orders_files")
    world.sql("ALTER TABLE {t} RENAME COLUMN Name TO tmp")
    world.sql("ALTER TABLE {t} RENAME COLUMN tmp TO name")
    version = world.version()
    world.insert("(2, 'b')")
    halted(world, "renamed column Name to name", f"ALLOW_SCHEMA_CHANGE={version}")
    assert world.delivered() == {"1": {"id": 1, "Name": "a"}}
    world.environ["CDF_TABLES__ORDERS__ALLOW_SCHEMA_CHANGE"] = str(version)
    assert world.run() is None
    assert world.delivered() == {"1": {"id": 1, "Name": "a"}, "2": {"id": 2, "name": "b"}}

    del world.environ["CDF_TABLES__ORDERS__ALLOW_SCHEMA_CHANGE"]
    after = world.state_path.load("orders_files")
    world.state_path.save(replace(after, table_schema=before.table_schema))
    world.insert("(3, 'c')")
    assert world.run() is None, "an older release delivered the rename without approval"
    assert world.state_path.load("orders_files").table_schema["columns"] == after.table_schema["columns"]
