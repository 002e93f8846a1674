"""Tables that the sink creates, and tables of a user: which fit, which are refused with a reason, and how they grow."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from datetime import date, datetime, timezone
from decimal import Decimal

import pytest
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

from connectors import EntryCount, PermanentError, Watermark, guard_of
from connectors.change import DELETES
from connectors.rendering import key_text
from connectors.testing import SCHEMA, deletion, render_chunk, upsert
from connectors.testing.chunk import render_frame
from connectors.testing.contract import assert_applied
from tests.contract.postgres_reader import route_to, sink_to
from tests.support.waiting import until

AT = datetime(2024, 1, 2, 3, 4, 5, 678901, tzinfo=timezone.utc)


def with_columns(**kinds):
    return StructType([*SCHEMA.fields, *(StructField(name, kind) for name, kind in kinds.items())])


def keyed(kind, name="id"):
    return StructType([StructField(name, kind), StructField("name", StringType())])


def test_created_table_has_typed_key_columns_and_a_type_for_each_column(sink, db, route):
    schema = with_columns(
        paid=BooleanType(), small=ShortType(), whole=IntegerType(), large=LongType(), rate=FloatType(), exact=DoubleType(),
        price=DecimalType(20, 2), raw=BinaryType(), day=DateType(), at=TimestampType(), local=TimestampNTZType(),
        tags=ArrayType(StringType()), days=ArrayType(DateType()), grid=ArrayType(ArrayType(LongType())),
        counts=MapType(StringType(), LongType()), nested=SCHEMA, anything=VariantType(),
    )  # fmt: skip
    sink.prepare(schema, route)
    assert db.types(route.table) == {
        "id": "text", "name": "text", "paid": "boolean", "small": "smallint", "whole": "integer", "large": "bigint",
        "rate": "real", "exact": "double precision", "price": "numeric(20,2)", "raw": "bytea", "day": "date",
        "at": "timestamp with time zone", "local": "timestamp without time zone", "tags": "text[]", "days": "date[]",
        "grid": "jsonb", "counts": "jsonb", "nested": "jsonb", "anything": "jsonb", "_cdf_guard": "bigint",
    }  # fmt: skip
    assert db.types(f"{route.table}__cdf_deleted") == {
        "id": "text", "_cdf_guard": "bigint", "deleted_at": "timestamp with time zone",
    }  # fmt: skip


def test_values_are_what_a_client_of_postgres_expects(sink, deliver, db, route):
    schema = with_columns(
        price=DecimalType(38, 10), raw=BinaryType(), at=TimestampType(), tags=ArrayType(StringType()),
        blobs=ArrayType(BinaryType()), days=ArrayType(DateType()), counts=MapType(StringType(), LongType()),
    )  # fmt: skip
    values = {
        "price": Decimal("1234567890123456789012345678.0123456789"),
        "raw": b"\x00\xff\\",
        "at": AT,
        "tags": ['a"b\\c', None, "", "{}", "NULL", "tab\t"],
        "blobs": [b"", b"\x00\\"],
        "days": [date(9999, 12, 31), None],
        "counts": {"a\tb": 1},
    }
    sink.prepare(schema, route)
    assert_applied(deliver(route, upsert("a", 1, **values), schema=schema))
    (row,) = db(f'SELECT * FROM "{route.table}"')
    assert {name: row[name] for name in values} == values


def of_bytes(spark, *texts):
    """Return a frame with a column ``text``, whose bytes are given in hexadecimal."""
    return spark.createDataFrame([(text,) for text in texts], "hex string").selectExpr(
        "cast(unhex(hex) AS string) AS text"
    )


def changed(rows, key, change_type, version, **columns):
    """Return the change frame of rows of SCHEMA."""
    guard = guard_of(1, version, upsert=change_type not in DELETES)
    values = [value.alias(name) for name, value in {"id": F.col("text"), "name": F.lit("x"), **columns}.items()]
    same = F.lit(guard).alias("guard"), F.lit(change_type).alias("change_type")
    return rows.select(key.alias("key"), *same, F.struct(*values).alias("row")).coalesce(1)


@pytest.mark.parametrize("change_type", ["snapshot", "update_postimage"])
def test_key_that_is_no_utf8_is_rejected_and_deletes_nothing(spark, sink, db, route, change_type):
    def write(change_type, version, *keys):
        frame = changed(of_bytes(spark, *keys), key_text([(F.col("text"), StringType())]), change_type, version)
        return sink.write(render_frame(frame, sink, route, SCHEMA))

    sink.prepare(SCHEMA, route)
    sink.open(route)
    result = write(change_type, 1, "61FF", "61EFBFBD", "61FE")  # the second has U+FFFD in the source
    assert [row["id"] for row in db(f'SELECT id FROM "{route.table}"')] == ["a\ufffd"]
    assert sorted((entry.position, entry.code) for entry in result.rejected) == [(n, "invalid_text") for n in (0, 2)]
    result = write("delete", 2, "61FF", "61FE")
    assert [row["id"] for row in db(f'SELECT id FROM "{route.table}"')] == ["a\ufffd"]
    assert (list(result.noop), list(result.rejected)) == ([0, 1], [])


def test_element_of_an_array_that_is_no_utf8_has_replacement_characters(spark, sink, db, route):
    schema, tags = with_columns(tags=ArrayType(StringType())), F.array("text", F.lit('"'))
    frame = changed(of_bytes(spark, "61FF62"), F.lit("a"), "insert", 1, id=F.lit("a"), tags=tags)
    sink.prepare(schema, route)
    sink.open(route)
    assert_applied(sink.write(render_frame(frame, sink, route, schema)))
    assert db(f'SELECT tags FROM "{route.table}"') == [{"tags": ["a\ufffdb", '"']}]


DAYS = (
    "-4712-01-01",
    "-0044-03-15",
    "0001-01-01",
    "1582-10-04",
    "1582-10-15",
    "1969-12-31",
    "1970-01-01",
    "9999-12-31",
    "+12024-02-29",
)
TIMES = ("00:00:00", "00:00:00.000001", "09:08:07.006", "12:34:56.789012", "23:59:59.999999")


def moments(spark, *texts):
    """Return a change frame with a row for each text of a time, and its number of microseconds and of days since 1970."""
    rows = spark.createDataFrame(
        [(f"{number:03}", text) for number, text in enumerate(texts)], "id string, text string"
    )
    kinds = {"local": "timestamp_ntz", "at": "timestamp", "day": "date"}
    values = [f"cast(text AS {kind}) AS {name}" for name, kind in kinds.items()]
    rows = rows.selectExpr("id", *values, "array(cast(text AS timestamp)) AS list")
    same = [F.lit(guard_of(1, 1, upsert=True)).alias("guard"), F.lit("insert").alias("change_type")]
    numbers = rows.selectExpr("unix_micros(at)", "unix_micros(cast(local AS timestamp))", "unix_date(day)").collect()
    return rows.select(F.col("id").alias("key"), *same, F.struct(*rows.columns).alias("row")).coalesce(1), numbers


def test_moments_of_every_year_are_those_of_the_source(spark, sink, db, route):
    frame, numbers = moments(spark, *(f"{day} {time}" for day in DAYS for time in TIMES))
    schema = frame.schema["row"].dataType
    sink.prepare(schema, route)
    sink.open(route)
    assert_applied(sink.write(render_frame(frame, sink, route, schema)))
    micros = "(extract(epoch FROM {}) * 1000000)::bigint"
    found = db(
        f"SELECT {micros.format('at')} AS at, {micros.format('local')} AS local, day - date '1970-01-01' AS day, "
        f'list = ARRAY[at] AS same FROM "{route.table}" ORDER BY id'
    )
    assert [(row["at"], row["local"], row["day"], row["same"]) for row in found] == [(*row, True) for row in numbers]


def test_moment_before_the_first_of_postgres_is_out_of_range(spark, sink, route):
    frame, _ = moments(spark, "-4800-01-01 00:00:00", "2024-01-02 00:00:00")
    schema = frame.schema["row"].dataType
    sink.prepare(schema, route)
    sink.open(route)
    rejected = sink.write(render_frame(frame, sink, route, schema)).rejected
    assert [(entry.position, entry.code) for entry in rejected] == [(0, "out_of_range")]


@pytest.mark.parametrize(
    ("kind", "value", "key"),
    [
        (IntegerType(), -7, "-7"),
        (BooleanType(), True, "true"),
        (DecimalType(20, 4), Decimal("1.5000"), "1.5000"),
        (DateType(), date(2024, 2, 29), "2024-02-29"),
        (TimestampType(), AT, "2024-01-02T03%3A04%3A05.678901Z"),
        (BinaryType(), b"\x00\xff" * 60, None),
        (DoubleType(), 1e7, "1.0E7"),
    ],
)
def test_delete_finds_the_row_of_a_typed_key(sink, deliver, db, route, spark, kind, value, key):
    from base64 import b64encode

    schema, key = keyed(kind), key or b64encode(value).decode()
    sink.prepare(schema, route)
    put = replace(upsert("x", 1, "one"), key=key, row={"id": value, "name": "one"})
    assert_applied(deliver(route, put, schema=schema))
    (row,) = db(f'SELECT * FROM "{route.table}"')
    assert row["id"] == value
    gone = replace(deletion("x", 2), key=key, row={"id": None, "name": None})
    assert_applied(deliver(route, gone, schema=schema))
    assert db(f'SELECT * FROM "{route.table}"') == []


@pytest.mark.parametrize("change_type", ["snapshot", "update_postimage"])
@pytest.mark.parametrize("kind", [FloatType(), DoubleType()])
def test_negative_zero_as_a_key_never_takes_the_row_of_zero(sink, deliver, db, route, kind, change_type):
    def row(key):
        return replace(upsert("x", 1), key=key, row={"id": float(key), "name": key}, change_type=change_type)

    schema = keyed(kind)
    sink.prepare(schema, route)
    result = deliver(route, row("0.0"), row("-0.0"), row("1.5"), schema=schema)
    sink.save_watermark(route, Watermark(0, 0, 1))
    assert [row["name"] for row in db(f'SELECT name FROM "{route.table}" ORDER BY id')] == ["0.0", "1.5"]
    ((position, code, reason),) = [(entry.position, entry.code, entry.reason) for entry in result.rejected]
    assert (position, code) == (1, "invalid")
    assert reason.endswith('"-0.0, which equals key 0.0" (id)')
    gone = replace(deletion("x", 2), key="-0.0", row={"id": None, "name": None})
    assert list(deliver(route, gone, schema=schema).noop) == [0]
    assert len(db(f'SELECT name FROM "{route.table}"')) == 2


def test_key_of_several_columns_is_the_primary_key(sink, deliver, db):
    route = route_to(keys=("shop", "id"))
    schema = StructType([*SCHEMA.fields, StructField("shop", StringType())])
    sink.prepare(schema, route)
    rows = [replace(upsert("1", 1, shop=shop, name=shop), key=f"{shop.replace(':', '%3A')}:1") for shop in ("a:b", "a")]
    assert_applied(deliver(route, *rows, schema=schema))
    gone = replace(deletion("1", 2), key="a%3Ab:1")
    assert_applied(deliver(route, gone, schema=schema))
    assert [row["shop"] for row in db(f'SELECT * FROM "{route.table}"')] == ["a"]


def test_names_are_quoted_and_qualified(postgres_server, spark, db):
    sink, route = sink_to(postgres_server.url, schema_name='Le "magasin"'), route_to('Or;ders" --')
    schema = StructType([*SCHEMA.fields, StructField('select "x", \\', StringType()), StructField("a.b", LongType())])
    sink.prepare(schema, route)
    sink.open(route)
    chunk = render_chunk(spark, sink, route, schema, [upsert("a", 1, **{'select "x", \\': "one", "a.b": 2})])
    assert_applied(sink.write(chunk))
    sink.close()
    (row,) = db('SELECT * FROM "Le ""magasin"""."Or;ders"" --"')
    assert (row['select "x", \\'], row["a.b"]) == ("one", 2)


def test_new_columns_are_added_and_widened_columns_get_the_wider_type(sink, deliver, db, route):
    sink.prepare(with_columns(n=IntegerType(), d=DecimalType(5, 2), xs=ArrayType(IntegerType()), f=FloatType()), route)
    schema = with_columns(n=LongType(), d=DecimalType(10, 4), xs=ArrayType(LongType()), f=DoubleType(), more=DateType())
    sink.prepare(schema, route)
    kinds = db.types(route.table)
    assert [kinds[name] for name in ("n", "d", "xs", "f", "more")] == [
        "bigint", "numeric(10,4)", "bigint[]", "double precision", "date",
    ]  # fmt: skip
    assert_applied(deliver(route, upsert("a", 1, n=2**40, xs=[2**40]), schema=schema))
    narrower = with_columns(n=ShortType(), d=DecimalType(5, 2))
    sink.prepare(narrower, route)
    assert_applied(deliver(route, upsert("b", 1, n=1, d=Decimal("1.50")), schema=narrower))


def test_column_that_the_route_lost_keeps_its_values_until_it_is_dropped(sink, deliver, db, route):
    sink.prepare(with_columns(price=LongType()), route)
    assert_applied(deliver(route, upsert("a", 1, price=10), schema=with_columns(price=LongType())))
    resync = replace(route, epoch=2)
    sink.prepare(SCHEMA, resync)
    assert_applied(deliver(resync, upsert("a", 2, "newer", epoch=2)))
    assert [(row["name"], row["price"]) for row in db(f'SELECT * FROM "{route.table}"')] == [("newer", 10)]
    db(f'ALTER TABLE "{route.table}" DROP COLUMN price')
    assert_applied(deliver(resync, upsert("a", 3, "newest", epoch=2)))


def test_widened_key_column_is_widened_in_both_tables(sink, db, route):
    sink.prepare(keyed(IntegerType()), route)
    sink.prepare(keyed(LongType()), route)
    assert db.types(route.table)["id"] == db.types(f"{route.table}__cdf_deleted")["id"] == "bigint"


SHOP = StructType([*SCHEMA.fields, StructField("shop", StringType())])


@pytest.mark.parametrize(
    ("former", "keys", "schema", "row", "key"),
    [
        (("id",), ("shop", "id"), SHOP, {"id": "1", "shop": "a"}, "a:1"),
        (("shop", "id"), ("id",), SHOP, {"id": "1", "shop": "a"}, "1"),
        (("id",), ("id",), keyed(LongType()), {"id": 1}, "1"),
    ],
    ids=["more columns", "fewer columns", "another type"],
)
def test_tombstones_of_a_former_key_do_not_block_the_new_one(sink, deliver, db, former, keys, schema, row, key):
    first = route_to(keys=former)
    sink.prepare(SHOP, first)
    deliver(first, replace(deletion("x", 1), key=":".join("former" for _ in former)), schema=SHOP)
    assert len(db(f'SELECT * FROM "{first.table}__cdf_deleted"')) == 1
    db(f'DROP TABLE "{first.table}"')
    route = replace(first, keys=keys, epoch=2)
    sink.prepare(schema, route)
    written = replace(upsert("x", 1, "one", epoch=2), key=key, row={"name": "one", **row})
    assert_applied(deliver(route, written, schema=schema))
    assert_applied(deliver(route, replace(deletion("x", 2, epoch=2), key=key, row={}), schema=schema))
    assert len(db(f'SELECT * FROM "{route.table}__cdf_deleted"')) == 1
    assert_applied(deliver(route, replace(written, guard=guard_of(2, 3, upsert=True)), schema=schema))
    assert sink.delete_orphans(route, guard_of(3, 0, upsert=False)) == 1
    assert db(f'SELECT * FROM "{route.table}"') == []


def test_tombstones_stay_if_the_key_stays(sink, deliver, db, route):
    sink.prepare(SCHEMA, route)
    deliver(route, deletion("a", 5))
    db(f'ALTER TABLE "{route.table}" ALTER COLUMN id TYPE varchar')
    sink.prepare(SCHEMA, route)
    assert db.types(f"{route.table}__cdf_deleted")["id"] == "character varying"
    assert list(deliver(route, upsert("a", 4)).stale) == [0]


def test_key_with_a_collation_that_merges_keys_is_refused(sink, db, route):
    name = f"loose_{route.table}"
    db(f'CREATE COLLATION {name} FROM "C"')
    db(
        "UPDATE pg_collation SET collisdeterministic = false WHERE collname = %s", name
    )  # the build of the tests has no ICU
    db(f'CREATE TABLE "{route.table}" (id text COLLATE {name} PRIMARY KEY, name text COLLATE {name})')
    with pytest.raises(PermanentError, match="column id has a nondeterministic collation"):
        sink.prepare(SCHEMA, route)
    db(f'ALTER TABLE "{route.table}" ALTER COLUMN id TYPE text COLLATE "C"')
    sink.prepare(SCHEMA, route)


def test_tombstones_have_the_collation_of_the_key(sink, db, route):
    """The index of a key does not serve a comparison by another collation: each chunk would read all tombstones for each row."""

    def collations():
        held = db(
            "SELECT collation_schema, collation_name FROM information_schema.columns WHERE table_name = %s AND column_name = 'id'",
            f"{route.table}__cdf_deleted",
        )
        return [(row["collation_schema"], row["collation_name"]) for row in held]

    db(f'CREATE SCHEMA "Their {route.table}"; CREATE COLLATION "Their {route.table}"."The C" FROM "C"')
    db(f'CREATE TABLE "{route.table}" (id text COLLATE "C" PRIMARY KEY, name text)')
    sink.prepare(SCHEMA, route)
    assert collations() == [("pg_catalog", "C")]
    for collation, found in (
        (f'"Their {route.table}"."The C"', (f"Their {route.table}", "The C")),
        ('pg_catalog."default"', (None, None)),
    ):
        db(f'ALTER TABLE "{route.table}" ALTER COLUMN id TYPE text COLLATE {collation}')
        sink.prepare(SCHEMA, route)
        assert collations() == [found]


def test_rows_are_counted_without_guards_and_without_tombstones(sink, deliver, db, route):
    """As before the first start of a route into a table of the user, or into a copy of another table of the service."""
    db(f'CREATE TABLE "{route.table}" (id text PRIMARY KEY, name text)')
    db(f"INSERT INTO \"{route.table}\" VALUES ('a', 'their own'), ('b', 'their own')")
    below = guard_of(1, 0, upsert=False)
    assert sink.count_entries(route, below) == EntryCount(total=2, orphans=2, highest=0)
    assert "_cdf_guard" not in db.types(route.table), "a count changes nothing"
    sink.prepare(SCHEMA, route)
    assert sink.count_entries(route, below) == EntryCount(total=2, orphans=2, highest=0)
    deliver(route, upsert("a", 1))
    db(f'DROP TABLE "{route.table}__cdf_deleted"')
    highest = guard_of(1, 1, upsert=True)
    assert sink.count_entries(route, below) == EntryCount(total=2, orphans=1, highest=highest)


def test_table_of_the_user_keeps_its_rows_and_gets_the_guard(sink, deliver, db, route):
    db(
        f"CREATE TABLE \"{route.table}\" (name varchar(20), note text NOT NULL DEFAULT '-', seq serial, "
        "number int GENERATED ALWAYS AS IDENTITY, low text GENERATED ALWAYS AS (lower(name)) STORED, "
        "mark text NOT NULL GENERATED ALWAYS AS (lower(id)) STORED, id text, PRIMARY KEY (id))"
    )
    db(f"INSERT INTO \"{route.table}\" (name, note, id) VALUES ('theirs', 'kept', 'a'), ('theirs', 'kept', 'z')")
    (warning,) = sink.prepare(with_columns(n=LongType()), route)
    assert "mark is NOT NULL and generated" in warning
    assert_applied(
        deliver(route, upsert("a", 1, "ours", n=1), upsert("b", 1, "ours"), schema=with_columns(n=LongType()))
    )
    rows = {row["id"]: (row["name"], row["note"], row["n"]) for row in db(f'SELECT * FROM "{route.table}"')}
    assert rows == {"a": ("ours", "kept", 1), "b": ("ours", "-", None), "z": ("theirs", "kept", None)}
    assert sink.count_entries(route, 1).orphans == 1, "a row without a guard"
    assert_applied(deliver(route, deletion("b", 2), schema=with_columns(n=LongType())))


@pytest.mark.parametrize(
    ("definition", "reason"),
    [
        ("TABLE {} (id text, name text)", r"no primary key \(id\)"),
        ("TABLE {} (id text PRIMARY KEY, name text UNIQUE)", "makes other columns than the key unique"),
        ("TABLE {} (id text PRIMARY KEY, name text NOT NULL)", "column name is NOT NULL"),
        ("TABLE {} (id text PRIMARY KEY, name text, must int NOT NULL)", "column must is NOT NULL without a default"),
        ("TABLE {} (id text PRIMARY KEY, name integer)", "column name is integer, the route sends text"),
        ("TABLE {} (id text PRIMARY KEY, name text GENERATED ALWAYS AS (id) STORED)", "column name is generated"),
        ("TABLE {} (id text PRIMARY KEY DEFERRABLE, name text)", "no primary key"),
        ("TABLE {} (id varchar(5) PRIMARY KEY, name text)", r"key column id is character varying\(5\), which cuts"),
        ("TABLE {} (name text PRIMARY KEY)", "no key column id"),
        ("TABLE {} (id text PRIMARY KEY, name text) PARTITION BY HASH (id)", "not an ordinary table"),
        ("VIEW {} AS SELECT 'a' AS id, 'b' AS name", "not an ordinary table"),
    ],
)
def test_table_that_can_not_take_the_route_is_refused(sink, db, route, definition, reason):
    db("CREATE " + definition.format(f'"{route.table}"'))
    with pytest.raises(PermanentError, match=reason) as caught:
        sink.prepare(SCHEMA, route)
    assert "TARGET_TABLE" in caught.value.hint
    assert ("drop the column, then run: cdf-replicator resync" in caught.value.hint) is ("the route sends" in reason)
    assert sink.read_claim(route) is None


@pytest.mark.parametrize("suffix", ["", "__cdf_deleted"])
def test_unlogged_table_is_refused_since_a_crash_empties_it(sink, db, route, suffix):
    sink.prepare(SCHEMA, route)
    name = f'"public"."{route.table}{suffix}"'
    db(f"ALTER TABLE {name} SET UNLOGGED")
    with pytest.raises(PermanentError, match="is UNLOGGED: a crash of the server empties it") as caught:
        sink.prepare(SCHEMA, route)
    assert f"ALTER TABLE {name} SET LOGGED" in caught.value.hint
    db(f"ALTER TABLE {name} SET LOGGED")
    sink.prepare(SCHEMA, route)


def test_table_that_becomes_unlogged_takes_no_further_changes(sink, deliver, db, route):
    sink.prepare(SCHEMA, route)
    assert_applied(deliver(route, upsert("a", 1)))
    db(f'ALTER TABLE "{route.table}" SET UNLOGGED')
    with pytest.raises(PermanentError, match="UNLOGGED"):
        deliver(route, upsert("a", 2))


def test_table_of_another_route_is_refused_until_a_resync(sink, route):
    sink.prepare(SCHEMA, route)
    other = replace(route, name="another")
    with pytest.raises(PermanentError, match="filled by route orders_db"):
        sink.prepare(SCHEMA, other)
    sink.prepare(SCHEMA, replace(other, epoch=2))
    assert sink.read_claim(other).route == "another"


@pytest.mark.parametrize("name", ["_cdf_guard", "cdf_position", "x" * 64])
def test_column_name_that_can_not_be_a_column_is_refused(sink, route, name):
    with pytest.raises(PermanentError, match="can't be a column"):
        sink.prepare(with_columns(**{name: LongType()}), route)


def test_column_of_the_tombstones_is_refused_as_a_key_alone(sink):
    schema = with_columns(deleted_at=StringType())
    with pytest.raises(PermanentError, match="Column deleted_at can't be a column"):
        sink.prepare(schema, route_to(keys=("id", "deleted_at")))
    sink.prepare(schema, route_to())


def test_view_on_a_column_that_has_to_be_widened_is_named(sink, db, route):
    sink.prepare(with_columns(n=IntegerType()), route)
    db(f'CREATE VIEW "{route.table}_view" AS SELECT n FROM "{route.table}"')
    with pytest.raises(PermanentError, match=f'view {route.table}_view depends on column "n"'):
        sink.prepare(with_columns(n=LongType()), route)
    db(f'DROP VIEW "{route.table}_view"')


def test_system_column_name_is_refused_with_the_reason_of_the_server(sink, route):
    with pytest.raises(PermanentError, match='"xmin" conflicts with a system column'):
        sink.prepare(with_columns(xmin=LongType()), route)


@pytest.mark.parametrize("derived", [(), ("id",)])
def test_key_column_that_the_row_lacks_is_refused(sink, route, derived):
    schema = SCHEMA if derived else StructType([StructField("name", StringType())])
    with pytest.raises(PermanentError, match="renames or leaves out key column id"):
        sink.prepare(schema, replace(route, derived_columns=derived))


def test_tombstones_are_forgotten_after_their_time(postgres_server, spark, route, db):
    sink = sink_to(postgres_server.url, tombstone_seconds=1000)
    sink.prepare(SCHEMA, route)
    sink.open(route)
    sink.write(render_chunk(spark, sink, route, SCHEMA, [deletion("a", 1), deletion("b", 1)]))
    tombstones = f'"{route.table}__cdf_deleted"'
    db(f"UPDATE {tombstones} SET deleted_at = now() - interval '1001 s' WHERE id = 'a'")
    assert sink.next_maintenance_at(route) is not None
    assert sink.run_maintenance(route) == "1 tombstones removed"
    assert [row["id"] for row in db(f"SELECT id FROM {tombstones}")] == ["b"]
    sink.close()


def test_tombstone_that_a_writer_renews_meanwhile_is_kept(postgres_server, spark, route, db):
    """An older minor release deletes it, if the statement compares its place alone."""
    with closing(sink_to(postgres_server.url, tombstone_seconds=1000)) as sink, ThreadPoolExecutor(1) as pool:
        sink.prepare(SCHEMA, route)
        sink.open(route)
        sink.write(render_chunk(spark, sink, route, SCHEMA, [deletion("a", 1)]))
        tombstones = f'"{route.table}__cdf_deleted"'
        db(f"UPDATE {tombstones} SET deleted_at = now() - interval '1001 s'")
        with db.connection.transaction():
            db(f"UPDATE {tombstones} SET deleted_at = now()")
            forgotten = pool.submit(sink.run_maintenance, route)
            until(lambda: db("SELECT pid FROM pg_locks WHERE NOT granted"), 20)
        assert forgotten.result(30) == ""
        assert [row["id"] for row in db(f"SELECT id FROM {tombstones}")] == ["a"]


def test_sweep_deletes_orphans_of_many_block_ranges(sink, db, route, monkeypatch):
    monkeypatch.setattr("connectors.postgres.view.BLOCKS_SWEPT", 3)
    sink.prepare(SCHEMA, route)
    db(f"INSERT INTO \"{route.table}\" SELECT n::text, repeat('x', 500), n FROM generate_series(1, 1000) n")
    assert sink.count_entries(route, 901).orphans == 900
    assert sink.delete_orphans(route, 901) == 900
    assert sink.count_entries(route, 901).total == 100
