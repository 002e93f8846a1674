"""A route from a Delta table into PostgreSQL, from its first load to a server that was restored."""

from __future__ import annotations

from contextlib import closing

import pytest

from cdf_replicator.state.command_queue import Command
from tests.contract.postgres_reader import Reader
from tests.support.postgres import emptied
from tests.support.verified import verified

ROUTE = "orders_db"


@pytest.fixture
def db(world, postgres_server):
    emptied(postgres_server)
    world.environ = {name: text for name, text in world.environ.items() if "FILES" not in name}
    world.environ |= {
        "CDF_TABLES__ORDERS__SINKS": "db",
        "CDF_SINKS__DB__TYPE": "postgres",
        "CDF_SINKS__DB__URL": postgres_server.url,
    }
    reader = Reader(postgres_server.url)
    with closing(reader.connection):
        yield reader


def held(db, columns="id, name"):
    return [tuple(row.values()) for row in db(f"SELECT {columns} FROM orders ORDER BY id")]


def test_table_follows_its_source_through_changes_of_rows_keys_and_columns(world, db):
    world.create(rows=["(1, 'a')", "(2, 'b')", "(3, 'c')"])
    assert world.run(ROUTE) is None
    assert held(db) == [(1, "a"), (2, "b"), (3, "c")]
    world.change("UPDATE {t} SET name = 'B' WHERE id = 2")
    world.change("DELETE FROM {t} WHERE id = 1")
    world.change("UPDATE {t} SET id = 30 WHERE id = 3")
    assert world.run(ROUTE) is None
    assert held(db) == [(2, "B"), (30, "c")]
    world.sql("ALTER TABLE {t} ADD COLUMN price decimal(5,2)")
    world.sql("INSERT INTO {t} VALUES (4, 'd', 1.50)")
    assert world.run(ROUTE) is None
    assert held(db, "id, name, price::text") == [(2, "B", None), (4, "d", "1.50"), (30, "c", None)]


def test_load_that_ends_before_its_key_is_made_is_repeated(world, db):
    db("CREATE FUNCTION pull() RETURNS event_trigger LANGUAGE plpgsql AS 'BEGIN RAISE ''the plug was pulled''; END'")
    db("CREATE EVENT TRIGGER plug ON ddl_command_start WHEN TAG IN ('ALTER TABLE') EXECUTE FUNCTION pull()")
    world.create(rows=["(1, 'a')", "(2, 'b')"])
    world.insert("(3, 'a\0')")
    try:
        assert "the plug was pulled" in world.run(ROUTE).message
    finally:
        db("DROP EVENT TRIGGER plug")
    assert (world.state(ROUTE).phase, held(db)) == ("bootstrapping", [(1, "a"), (2, "b")])
    world.change("UPDATE {t} SET name = 'A' WHERE id = 1")
    world.change("DELETE FROM {t} WHERE id = 2")
    assert world.run(ROUTE) is None
    assert (held(db), world.dead_letters("key", "code")) == ([(1, "A")], [("3", "invalid_text")])
    assert verified(world.spark, world.settings, world.state_path) == []


def test_refused_row_is_a_dead_letter_and_its_older_row_is_deleted(world, db):
    world.create(rows=["(1, 'a')", "(2, 'b')"])
    assert world.run(ROUTE) is None
    world.change("UPDATE {t} SET name = 'a\0' WHERE id = 1")
    assert world.run(ROUTE) is None
    assert (held(db), world.dead_letters("key", "code")) == ([(2, "b")], [("1", "invalid_text")])
    world.change("UPDATE {t} SET name = 'corrected' WHERE id = 1")
    assert world.run(ROUTE) is None
    assert held(db) == [(1, "corrected"), (2, "b")]
    assert world.letters.known(ROUTE, 10).open == 0


def test_vector_of_doubles_is_equal_to_its_floats(world, db):
    """pgvector keeps floats of four bytes, and no row of ``array<double>`` equals them bit by bit."""
    db("CREATE EXTENSION IF NOT EXISTS vector")
    world.environ["CDF_ROUTES__ORDERS_DB__VECTORS"] = "embedding:2"
    world.create(
        rows=["(1, 'a', array(0.123456789012D, 1.0000000596046448D))", "(2, 'b', NULL)"],
        columns="id bigint, name string, embedding array<double>",
    )
    assert world.run(ROUTE) is None
    assert verified(world.spark, world.settings, world.state_path) == []
    db("UPDATE orders SET embedding = '[0.1234,1]' WHERE id = 1")
    assert verified(world.spark, world.settings, world.state_path) != []


def test_older_row_that_stays_is_named_until_a_redrive_deletes_it(world, db):
    db("CREATE TABLE orders (id bigint PRIMARY KEY, name text CHECK (name <> 'bad'))")
    db("CREATE TABLE lines (id bigint REFERENCES orders)")
    world.create(rows=["(1, 'a')", "(2, 'b')"])
    assert world.run(ROUTE) is None
    db("INSERT INTO lines VALUES (1)")
    world.change("UPDATE {t} SET name = 'bad'")
    assert world.run(ROUTE) is None
    assert held(db) == [(1, "a")]
    kept, deleted = world.dead_letters("key", "code", "reason")
    assert (kept[:2], deleted[:2]) == (("1", "constraint"), ("2", "constraint"))
    assert "the sink refused to delete an older entry, which stays visible: update or delete on table" in kept[2]
    assert "older" not in deleted[2]
    (event,) = (event.what for event in world.board.snapshot().events if "older entries" in event.what)
    assert "refused 1 deletes" in event
    assert "key '1'" in event
    assert "verify of orders_db" in verified(world.spark, world.settings, world.state_path)[0]
    db("DELETE FROM lines")
    assert world.run(ROUTE, command=Command("redrive", ROUTE)) is None
    assert (held(db), world.letters.known(ROUTE, 10).open) == ([], 2)
    assert verified(world.spark, world.settings, world.state_path) == []


def test_resync_replaces_rows_of_another_writer_and_deletes_orphans(world, db):
    world.create(rows=["(1, 'a')", "(2, 'b')"])
    assert world.run(ROUTE) is None
    db("UPDATE orders SET name = 'theirs' WHERE id = 1")
    db("INSERT INTO orders VALUES (9, 'theirs')")
    assert world.run(ROUTE, command=Command("resync", ROUTE)) is None
    assert held(db) == [(1, "a"), (2, "b")]


def test_restored_table_receives_what_the_copy_lacks(world, db):
    world.create(rows=["(1, 'a')"])
    assert world.run(ROUTE) is None
    world.insert("(2, 'b')")
    assert world.run(ROUTE) is None
    (claim,) = db("SELECT mark FROM cdf_claim")
    world.insert("(3, 'c')")
    assert world.run(ROUTE) is None
    db("DELETE FROM orders WHERE id = 3")  # as a copy of before would
    db("UPDATE cdf_claim SET mark = %s", claim["mark"])
    assert world.run(ROUTE) is None
    assert held(db) == [(1, "a"), (2, "b"), (3, "c")]


def test_dropped_table_halts_the_route_until_a_resync(world, db):
    world.create(rows=["(1, 'a')"])
    assert world.run(ROUTE) is None
    db("DROP TABLE orders")
    decision = world.run(ROUTE)
    assert decision.reason == "target_gone"
    assert f"resync {ROUTE}" in decision.remedy
    assert world.run(ROUTE, command=Command("resync", ROUTE)) is None
    assert held(db) == [(1, "a")]


def test_table_that_does_not_fit_halts_the_route_with_every_reason(world, db):
    db("CREATE TABLE orders (id bigint PRIMARY KEY, name integer, code text NOT NULL UNIQUE)")
    world.create(rows=["(1, 'a')"])
    decision = world.run(ROUTE)
    for reason in (
        "name is integer, the route sends text",
        "code is NOT NULL without a default",
        "makes other columns",
    ):
        assert reason in decision.message
    assert "TARGET_TABLE" in decision.remedy
