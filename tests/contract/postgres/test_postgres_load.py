"""The first load of a table that the sink creates: rows by COPY, and the primary key after them."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from random import Random

import pytest

from connectors import PermanentError, RetryableError, Watermark
from connectors.testing import SCHEMA, deletion, render_chunk, upsert
from connectors.testing.contract import assert_applied
from tests.contract.postgres_reader import impatient, sink_to

LOADED = Watermark(0, 0, 5)
LONG_KEY = Random(1).randbytes(5000).hex()  # which does not compress


def loaded(*keys, version=5, epoch=1, name="loaded"):
    """Return rows of a snapshot."""
    return [replace(upsert(key, version, name, epoch=epoch), change_type="snapshot") for key in keys]


@pytest.fixture
def load(spark, sink, route, deliver):
    """Prepare a new table and return a function that loads rows as one chunk."""
    sink.prepare(SCHEMA, route)
    return lambda *rows: deliver(route, *rows)


def rows(db, route):
    return [tuple(row.values()) for row in db(f'SELECT id, name FROM "{route.table}" ORDER BY id, name')]


def key_of(db, route):
    query = (
        "SELECT array_agg(attname::text ORDER BY attname) AS names FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid "
        "AND a.attnum = ANY (i.indkey) WHERE i.indrelid = to_regclass(%s) AND i.indisprimary"
    )
    return db(query, f'"{route.table}"')[0]["names"]


def test_primary_key_is_made_after_the_load_and_before_its_watermark(sink, load, db, route):
    assert_applied(load(*loaded("a", "b")))
    assert (key_of(db, route), rows(db, route)) == (None, [("a", "loaded"), ("b", "loaded")])
    sink.save_watermark(route, LOADED)
    assert key_of(db, route) == ["id"]
    assert sink.read_claim(route).watermark == LOADED
    assert list(load(upsert("a", 4, "late"), upsert("b", 6, "newer")).stale) == [0]
    assert rows(db, route) == [("a", "loaded"), ("b", "newer")]


def test_chunk_that_was_loaded_twice_leaves_its_rows_once(sink, load, db, route):
    for _ in range(2):
        assert_applied(load(*loaded("a", "b")))
    load(*loaded("b", version=6, name="newer"))
    assert len(rows(db, route)) == 5
    sink.save_watermark(route, LOADED)
    assert (key_of(db, route), rows(db, route)) == (["id"], [("a", "loaded"), ("b", "newer")])


@pytest.mark.usefixtures("publication")
@pytest.mark.parametrize(("identity", "kind"), [("DEFAULT", "d"), ("FULL", "f")])
def test_published_table_that_was_loaded_twice_gets_its_key(sink, load, db, route, identity, kind):
    db(f'ALTER TABLE "{route.table}" REPLICA IDENTITY {identity}')
    for _ in range(2):
        assert_applied(load(*loaded("a", "b")))
    sink.save_watermark(route, LOADED)
    assert (key_of(db, route), rows(db, route)) == (["id"], [("a", "loaded"), ("b", "loaded")])
    assert db("SELECT relreplident FROM pg_class WHERE relname = %s", route.table) == [{"relreplident": kind}]
    assert_applied(load(deletion("a", 6)))


def test_interrupted_load_is_repeated_by_another_driver(postgres_server, load, spark, db, route):
    load(*loaded("a", "b"))
    with closing(sink_to(postgres_server.url)) as other:
        other.prepare(SCHEMA, replace(route, fence=1))
        assert key_of(db, route) == ["id"]
        other.open(replace(route, fence=1))
        assert_applied(other.write(render_chunk(spark, other, route, SCHEMA, loaded("a", "b", "c"))))
        other.save_watermark(replace(route, fence=1), LOADED)
    assert rows(db, route) == [(key, "loaded") for key in "abc"]
    with pytest.raises(PermanentError, match="another instance"):
        load(*loaded("d"))


def test_load_of_another_epoch_replaces_an_interrupted_one(sink, load, spark, db, route):
    load(*loaded("a", "gone"))
    next_epoch = replace(route, epoch=2)
    sink.prepare(SCHEMA, next_epoch)
    sink.open(next_epoch)
    sink.write(render_chunk(spark, sink, next_epoch, SCHEMA, loaded("a", epoch=2, name="again")))
    sink.save_watermark(next_epoch, LOADED)
    assert sink.delete_orphans(next_epoch, 2 * 2**44) == 1
    assert rows(db, route) == [("a", "again")]


def test_tasks_that_load_and_change_at_once_leave_each_row_once(postgres_server, spark, load, db, route):
    """A task of the load runs twice, as a speculative task does, while the first change makes the key."""
    keys = [f"k{number:03}" for number in range(300)]
    sinks = [sink_to(postgres_server.url) for _ in range(3)]
    chunks = [
        render_chunk(spark, sinks[0], route, SCHEMA, changes) for changes in (loaded(*keys), [deletion("k150", 6)])
    ]

    def task(number):
        sinks[number].open(route)
        for start in range(0, len(keys), 20):
            if number < 2:
                sinks[number].write(chunks[0].slice(start, 20))
            elif start == 160:
                sinks[number].write(chunks[1])

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(task, range(3)))
    for sink in sinks:
        sink.close()
    assert [key for key, _ in rows(db, route)] == [key for key in keys if key != "k150"]
    assert key_of(db, route) == ["id"]


def test_refused_rows_of_a_load_are_rejected_and_the_others_are_written(sink, load, db, route):
    result = load(*loaded("a", "b"), upsert("bad", 5, "nul\0byte"), *loaded("c"))
    assert [(entry.position, entry.code) for entry in result.rejected] == [(2, "invalid_text")]
    sink.save_watermark(route, LOADED)
    assert [key for key, _ in rows(db, route)] == ["a", "b", "c"]


def test_refused_row_of_a_snapshot_is_found_by_its_line(load, db, route):
    bad = [replace(row, row={**row.row, "name": "nul\0byte"}) for row in loaded("bad 1", "bad 2")]
    result = load(bad[0], *loaded("a"), bad[1], *loaded("b"))
    assert [(entry.position, entry.code) for entry in result.rejected] == [(0, "invalid_text"), (2, "invalid_text")]
    assert (key_of(db, route), [key for key, _ in rows(db, route)]) == (None, ["a", "b"])


def test_key_that_an_index_can_not_hold_is_rejected_during_the_load(sink, load, db, route):
    load(*loaded("a"))
    result = load(*loaded("b", LONG_KEY, "c"))
    assert [(entry.position, entry.code) for entry in result.rejected] == [(1, "too_large")]
    sink.save_watermark(route, LOADED)
    assert [key for key, _ in rows(db, route)] == ["a", "b", "c"]


def test_new_table_beside_old_tombstones_has_its_key_at_once(sink, load, deliver, db, route):
    load(deletion("a", 9))
    db(f'DROP TABLE "{route.table}"')
    sink.prepare(SCHEMA, route)
    assert key_of(db, route) == ["id"]
    assert list(deliver(route, *loaded("a", "b")).stale) == [0], "a tombstone is newer"
    assert rows(db, route) == [("b", "loaded")]


def test_reader_that_locks_the_table_delays_the_key_and_not_the_load(postgres_server, load, db, route):
    load(*loaded("a"))
    with closing(sink_to(postgres_server.url)) as other:
        with db.connection.transaction():
            assert rows(db, route) == [("a", "loaded")]
            with impatient(other), pytest.raises(RetryableError) as caught:
                other.save_watermark(route, LOADED)
            assert caught.value.reason == "timeout"
            load(*loaded("b"))
        other.save_watermark(route, LOADED)
    assert (key_of(db, route), len(rows(db, route))) == (["id"], 2)


def test_dropped_key_of_a_loaded_table_halts(sink, load, db, route):
    load(*loaded("a"))
    sink.save_watermark(route, LOADED)
    db(f'ALTER TABLE "{route.table}" DROP CONSTRAINT "{route.table}_pkey"')
    with pytest.raises(PermanentError, match="cdf-replicator resume"):
        load(*loaded("a"))
    with pytest.raises(PermanentError, match="no primary key"):
        sink.prepare(SCHEMA, route)


def test_row_of_another_writer_without_a_key_halts_and_is_named(sink, load, db, route):
    db(f'INSERT INTO "{route.table}" (name) VALUES (%s)', "theirs")
    load(*loaded("a"))
    with pytest.raises(PermanentError, match=r"contains null values \(id\)"):
        load(upsert("a", 6))
    with pytest.raises(PermanentError, match="does not take its primary key"):
        sink.save_watermark(route, LOADED)
