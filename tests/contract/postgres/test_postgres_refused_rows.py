"""Rows and deletes that a table refuses or ignores: types, constraints, triggers, row-level security."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import date
from decimal import Decimal
from itertools import count
from random import Random
from threading import Event

import psycopg
import pytest
from pyspark.sql.types import DateType, DecimalType, LongType, StringType, StructField, StructType

from connectors import PermanentError, SinkError, Watermark, guard_of
from connectors.testing import SCHEMA, deletion, render_chunk, upsert
from connectors.testing.contract import assert_applied
from tests.contract.postgres_reader import sink_to
from tests.support.waiting import until


def test_row_that_overflows_a_narrowed_column_is_rejected(sink, written, route, db):
    schema = StructType([*SCHEMA.fields, StructField("n", LongType()), StructField("price", DecimalType(20, 2))])
    write = written(sink, route, schema)
    assert_applied(write(upsert("a", 1, n=1, price=Decimal(1))))
    db(f'ALTER TABLE "{route.table}" ALTER COLUMN n TYPE smallint, ALTER COLUMN price TYPE numeric(5, 2)')
    rows = [upsert("b", 1, n=2**15), upsert("c", 1, price=Decimal(1000)), upsert("d", 1, n=1, price=Decimal(999))]
    result = write(*rows)
    assert [(entry.position, entry.code) for entry in result.rejected] == [(0, "out_of_range"), (1, "out_of_range")]
    assert [row["id"] for row in db(f'SELECT id FROM "{route.table}" ORDER BY id')] == ["a", "d"]


def test_rows_that_a_table_can_not_take_are_rejected_with_their_reasons(sink, written, route, db):
    db(f"CREATE TABLE \"{route.table}\" (id text PRIMARY KEY, name varchar(9), day date CHECK (day < '5000-01-01'))")
    schema = StructType([*SCHEMA.fields, StructField("day", DateType()), StructField("more", StringType())])
    write = written(sink, route, schema)
    long_key = Random(1).randbytes(5000).hex()  # which does not compress
    result = write(
        upsert("good 1", 1, "x"),
        upsert("a", 1, "nul\0byte"),
        upsert("b", 1, "ten letters"),
        upsert("good 2", 1, "x"),
        upsert("c", 1, day=date(6000, 1, 1)),
        upsert(long_key, 1),
        upsert("nul\0key", 1),
        deletion("nul\0key", 2),
        deletion(long_key, 2),
        deletion(long_key[:4000], 2),
        upsert("good 3", 1, "x"),
    )
    assert {entry.position: entry.code for entry in result.rejected} == {
        1: "invalid_text", 2: "too_large", 4: "constraint", 5: "too_large", 6: "invalid_text",
    }  # fmt: skip
    assert list(result.noop) == [7, 8, 9], "no row can have this key"
    assert not result.stale
    reasons = {entry.position: entry.reason for entry in result.rejected}
    assert "name" in reasons[2]
    assert "ten letters" not in "".join(reasons.values())
    assert [row["id"] for row in db(f'SELECT id FROM "{route.table}" ORDER BY id')] == ["good 1", "good 2", "good 3"]


def test_delete_that_a_foreign_key_refuses_is_a_dead_letter(sink, written, route, db):
    write = written(sink, route)
    write(upsert("a", 1), upsert("b", 1))
    db(f'CREATE TABLE "{route.table}_lines" (id text REFERENCES "{route.table}")')
    db(f"INSERT INTO \"{route.table}_lines\" VALUES ('a')")
    result = write(deletion("b", 2), deletion("a", 2))
    assert [(entry.position, entry.code) for entry in result.rejected] == [(1, "constraint")]
    assert [row["id"] for row in db(f'SELECT id FROM "{route.table}"')] == ["a"]


def test_sweep_that_a_foreign_key_refuses_halts_with_its_name(sink, written, route, db):
    write = written(sink, route)
    write(upsert("a", 1), upsert("b", 1))
    db(f'CREATE TABLE "{route.table}_lines" (id text CONSTRAINT line_of REFERENCES "{route.table}")')
    db(f"INSERT INTO \"{route.table}_lines\" VALUES ('a')")
    below = guard_of(2, 0, upsert=False)
    with pytest.raises(PermanentError, match='foreign key constraint "line_of"') as caught:
        sink.delete_orphans(route, below)
    assert "Delete the rows that refer to it, then run: cdf-replicator resume" in caught.value.hint
    db(f'DELETE FROM "{route.table}_lines"')
    assert sink.delete_orphans(route, below) == 2


@pytest.mark.usefixtures("publication")
def test_delete_from_a_published_table_without_a_key_halts(sink, written, route, db):
    db(f'CREATE TABLE "{route.table}" (id text UNIQUE, name text)')
    write = written(sink, route)
    with pytest.raises(PermanentError, match="does not have a replica identity") as caught:
        write(deletion("a", 1))
    assert "ADD PRIMARY KEY" in caught.value.hint
    db(f'ALTER TABLE "{route.table}" ADD PRIMARY KEY (id)')
    assert_applied(write(upsert("a", 1)))
    assert_applied(write(deletion("a", 2)))


@pytest.mark.parametrize(
    "fault",
    [
        "RAISE 'no name' USING ERRCODE = '22004';",
        "RAISE 'no name' USING ERRCODE = '54000';",
        "INSERT INTO {table}_log SELECT string_agg(md5(n::text), '') FROM generate_series(1, 400) n;",
    ],
    ids=["null", "limit", "key of another table"],
)
def test_delete_that_a_trigger_refuses_is_a_dead_letter(sink, written, route, db, fault):
    """A trigger may fail on the placeholder of a delete, which has no values; its table may have the row."""
    write = written(sink, route)
    write(upsert("a", 1, "one"))
    db(f"CREATE TABLE {route.table}_log (text text PRIMARY KEY)")
    db(
        f"CREATE FUNCTION {route.table}_refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        f"IF NEW.name IS NULL THEN {fault.format(table=route.table)} END IF; RETURN NEW; END $$"
    )
    db(f'CREATE TRIGGER refuse BEFORE INSERT ON "{route.table}" FOR EACH ROW EXECUTE FUNCTION {route.table}_refuse()')
    result = write(deletion("a", 2))
    assert ([entry.position for entry in result.rejected], list(result.noop)) == ([0], [])
    assert [row["id"] for row in db(f'SELECT id FROM "{route.table}"')] == ["a"]


@pytest.mark.parametrize("operation", ["DELETE", "INSERT"])
def test_delete_that_a_trigger_ignores_halts_and_changes_nothing(sink, written, route, db, operation):
    write = written(sink, route)
    write(upsert("a", 1, "one"), upsert("b", 3, "newer"))
    db(f"CREATE FUNCTION {route.table}_keep() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$")
    db(f'CREATE TRIGGER keep BEFORE {operation} ON "{route.table}" FOR EACH ROW EXECUTE FUNCTION {route.table}_keep()')
    assert list(write(deletion("b", 2)).stale) == [0], "no delete is needed"
    with pytest.raises(PermanentError, match="keeps rows that were deleted") as caught:
        write(deletion("a", 2), deletion("absent", 2))
    assert "Remove the trigger" in caught.value.hint
    with pytest.raises(PermanentError, match="no tombstone"):
        write(deletion("absent", 2))
    assert db(f'SELECT id, name FROM "{route.table}" ORDER BY id') == [
        {"id": "a", "name": "one"},
        {"id": "b", "name": "newer"},
    ]
    db(f'DROP TRIGGER keep ON "{route.table}"')
    assert list(write(deletion("a", 2), deletion("absent", 2)).noop) == [1]
    assert [row["id"] for row in db(f'SELECT id FROM "{route.table}"')] == ["b"]


def test_row_of_an_inheriting_table_does_not_prevent_its_delete(written, sink, route, db):
    write = written(sink, route)
    write(upsert("a", 1), upsert("b", 3, "newer"))
    db(f'CREATE TABLE "{route.table}_archive" () INHERITS ("{route.table}")')
    db(f"INSERT INTO \"{route.table}_archive\" (id) VALUES ('a')")
    assert list(write(deletion("a", 2), deletion("b", 2)).stale) == [1]


def test_sweep_takes_rows_that_an_application_inserts_meanwhile(postgres_server, written, sink, route, db):
    written(sink, route)
    db(f"INSERT INTO \"{route.table}\" (id) SELECT 'own ' || n FROM generate_series(1, 50000) n")
    ended = Event()

    def insert_rows():
        with psycopg.connect(postgres_server.url, autocommit=True) as other:
            for number in count():
                other.execute(f'INSERT INTO "{route.table}" (id) VALUES (%s)', [f"later {number}"])
                if ended.wait(0.002):
                    return

    with ThreadPoolExecutor() as pool:
        inserted = pool.submit(insert_rows)
        try:
            until(lambda: db(f"SELECT id FROM \"{route.table}\" WHERE id = 'later 0'"))
            assert sink.delete_orphans(route, guard_of(2, 0, upsert=False)) > 50_000
        finally:
            ended.set()
        inserted.result()


@pytest.fixture
def restricted(postgres_server, db, route):
    """A sink whose user may read, insert and update the rows of a table with row-level security, but has no DELETE policy."""
    name, role = f'"{route.table}"', f"restricted_{route.table}"
    with closing(sink_to(postgres_server.url)) as owner:
        owner.prepare(SCHEMA, route)
        owner.save_watermark(route, Watermark(0, 0, 1))
    db(f"CREATE ROLE {role} LOGIN")
    db(f"GRANT USAGE ON SCHEMA public TO {role}")
    db(f'GRANT ALL ON {name}, "{route.table}__cdf_deleted", cdf_claim TO {role}')
    db(f"ALTER TABLE {name} ENABLE ROW LEVEL SECURITY")
    for operation, check in (("SELECT", "USING"), ("INSERT", "WITH CHECK"), ("UPDATE", "USING")):
        db(f"CREATE POLICY may_{operation} ON {name} FOR {operation} {check} (true)")
    with closing(sink_to(postgres_server.url.replace("cdf@", f"{role}@"))) as sink:
        yield sink
    db(f"DROP OWNED BY {role}")
    db(f"DROP ROLE {role}")


def test_delete_that_row_level_security_hides_halts(spark, restricted, route, db):
    def write(*changes):
        return restricted.write(render_chunk(spark, restricted, route, SCHEMA, changes))

    restricted.open(route)
    assert_applied(write(upsert("a", 1, "one")))
    with pytest.raises(PermanentError, match="row-level security") as caught:
        write(deletion("a", 2))
    assert "policy FOR DELETE" in caught.value.hint
    with pytest.raises(PermanentError, match="row-level security"):
        restricted.delete_orphans(route, guard_of(2, 0, upsert=False))
    assert db(f'SELECT name FROM "{route.table}"') == [{"name": "one"}]
    db(f'CREATE POLICY may_delete ON "{route.table}" FOR DELETE USING (true)')
    assert_applied(write(deletion("a", 2)))
    assert restricted.delete_orphans(route, guard_of(2, 0, upsert=False)) == 0


@pytest.mark.parametrize(
    ("state", "expected"),
    [("53000", "overloaded"), ("40000", "conflict"), ("55006", "conflict"), ("XX000", "unavailable"), ("38000", None)],
)
def test_error_without_a_rule_of_its_own_is_classified(sink, written, route, db, state, expected):
    write = written(sink, route)
    write(upsert("a", 1))
    db(
        f"CREATE FUNCTION fail_{state}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        f"RAISE EXCEPTION 'the text of the server' USING ERRCODE = '{state}'; END $$"
    )
    db(f'CREATE TRIGGER fail BEFORE INSERT ON "{route.table}" FOR EACH ROW EXECUTE FUNCTION fail_{state}()')
    with pytest.raises(SinkError, match="the text of the server") as caught:
        write(upsert("b", 1))
    assert getattr(caught.value, "reason" if expected else "hint", "").startswith(expected or "Correct the table")


def test_positions_of_a_chunk_with_bad_rows_stay_those_of_the_chunk(sink, written, route):
    write = written(sink, route)
    write(upsert("newer", 9), upsert("gone", 1))
    result = write(
        upsert("bad 1", 5, "\0"),
        upsert("newer", 5),
        deletion("gone", 5),
        deletion("absent", 5),
        upsert("bad 2", 5, "\0"),
    )
    assert [entry.position for entry in sorted(result.rejected, key=lambda entry: entry.position)] == [0, 4]
    assert (list(result.stale), list(result.noop)) == ([1], [3])


def test_positions_are_those_of_the_chunk_for_rows_of_any_size(sink, written, route):
    """Rows of different sizes fill the pages of the temporary table in another order than that of the chunk."""
    write = written(sink, route)
    random = Random(1)
    write(*(upsert(f"{at}", 9, "newer") for at in range(0, 400, 7)), deletion("former", 1))
    for _ in range(5):
        names = [random.randbytes(random.choice([350, 950])).hex() for _ in range(400)]
        changes = (deletion(f"{at}", 5) if at % 5 == 1 else upsert(f"{at}", 5, name) for at, name in enumerate(names))
        result = write(*changes)
        assert list(result.stale) == list(range(0, 400, 7))
        assert list(result.noop) == [at for at in range(1, 400, 5) if at % 7]
