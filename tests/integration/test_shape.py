"""Filters, columns and computed columns of a route: what of a row is delivered, and when a row is in at all."""

from __future__ import annotations

import json

import pytest

from cdf_replicator.errors.exceptions import RouteHaltError
from cdf_replicator.queries import validation
from cdf_replicator.transform import change_frame

ROUTE = "CDF_ROUTES__ORDERS_FILES__"
SOME = "id bigint, name string, qty int, day date, `a.b` int, tags array<string>, v variant, ts timestamp, at struct<x: int, y: int>"


def row_schema(world, schema, **settings):
    """Return the schema of the rows that a route with these settings delivers, or raise the error that would halt it."""
    world.environ = {name: value for name, value in world.environ.items() if not name.startswith(ROUTE)}
    world.environ |= {ROUTE + name.upper(): value for name, value in settings.items()}
    return change_frame.row_schema(schema, world.settings.routes["orders_files"])


def is_no_draft(row):
    return row["name"] not in {None, "draft"}


def test_rows_enter_and_leave_the_filter_in_every_way(world):
    world.environ[ROUTE + "FILTER"] = "name <> 'draft'"
    world.create(rows=["(1, 'a')", "(2, 'draft')", "(3, NULL)", "(4, 'd')", "(5, 'draft')", "(6, 'f')"])
    assert world.run() is None
    assert world.delivered() == world.expected(is_no_draft)
    world.change("UPDATE {t} SET name = 'draft' WHERE id = 1")  # out
    world.change("UPDATE {t} SET name = 'b' WHERE id = 2")  # in
    world.change("UPDATE {t} SET name = 'c' WHERE id = 3")  # in, from neither true nor false
    world.change("UPDATE {t} SET name = NULL WHERE id = 4")  # out, to neither
    world.change("UPDATE {t} SET id = 50, name = 'e' WHERE id = 5")  # in under another key
    world.change("UPDATE {t} SET id = 60, name = 'draft' WHERE id = 6")  # out under another key
    assert world.run() is None
    assert world.delivered() == world.expected(is_no_draft)
    assert set(world.delivered()) == {"2", "3", "50"}
    world.change(
        "UPDATE {t} SET id = CASE id WHEN 2 THEN 3 WHEN 3 THEN 2 ELSE id END, name = if(id = 3, 'draft', name)"
    )
    world.change("DELETE FROM {t} WHERE id IN (1, 50)")
    assert world.run() is None
    assert world.delivered() == world.expected(is_no_draft) == {"3": {"id": 3, "name": "b"}}


def test_computed_and_renamed_columns_follow_their_row(world):
    world.environ |= {
        ROUTE + "COLUMNS": "id,name",
        ROUTE + "RENAME": "name=Title",
        ROUTE + "COMPUTED": json.dumps({"Name": "upper(name)", "total": "qty * 2", "next day": "date_add(day, 1)"}),
        ROUTE + "FILTER": "qty > 0",
    }
    world.create("id bigint, name string, qty int, day date", rows=["(1, 'a', 1, DATE '2026-01-31')"])
    assert world.run() is None
    row = {"id": 1, "Title": "a", "Name": "A", "total": 2, "next day": "2026-02-01"}
    assert world.delivered() == {"1": row}
    world.change("UPDATE {t} SET qty = 5")
    assert world.run() is None
    assert world.delivered() == {"1": row | {"total": 10}}
    world.change("UPDATE {t} SET qty = 0")
    assert world.run() is None
    assert world.delivered() == {}
    world.environ[ROUTE + "COMPUTED"] = '{"total": "qty * 3"}'
    decision = world.run()
    assert (decision.action, decision.reason) == ("halt", "route_changed")
    assert "computed was" in decision.message
    del world.environ[ROUTE + "COMPUTED"]
    assert "computed was" in world.run().message, "an expression that was taken away is a change too"


def test_a_projection_may_keep_the_key_alone(world):
    world.environ[ROUTE + "COLUMNS"] = "id"
    world.create(rows=["(1, 'a')"])
    assert world.run() is None
    world.change("UPDATE {t} SET name = 'b'")
    world.insert("(2, 'c')")
    assert world.run() is None
    assert world.delivered() == {"1": {"id": 1}, "2": {"id": 2}}


def test_nondeterministic_filter_or_expression_halts_the_route(world):
    schema = world.spark.createDataFrame([], SOME).schema
    fickle = {
        "day > 'today'": "changes every day",
        "to_date('yesterday') < day": "changes every day",
        "try_cast(' now UTC' AS timestamp) > day": "changes every day",
        "day > DATE 'today'": "changes every day",
        'day < timestamp " now "': "changes every day",
        "ts > '12:00:00'": "changes every day",
        "ts > ' T7:30+01:00'": "changes every day",
        "try_cast('12:30:00 Europe/Berlin' AS timestamp) < ts": "changes every day",
        "to_timestamp('T12:30') < ts": "changes every day",
        "ts > TIMESTAMP '12:30'": "changes every day",
        "timestamp('T12') < ts": "changes every day",
        "ts > TIMESTAMP_NTZ 'today'": "changes every day",
        "day > DATE r'today'": "changes every day",
        "day > DATE /* a /* b */ c */ -- d\n 'today'": "changes every day",
        "day > CAST(CAST('today' AS varchar(10)) AS date)": "changes every day",
        "day > CAST(concat('to', 'day') AS date)": "changes every day",
        "day > to_date(lower('TODAY'))": "changes every day",
        "ts > CAST(concat('12', ':00') AS timestamp)": "changes every day",
        "day >= current_date - 30": "when, where or by whom",
        "day > CURRENT_TIMESTAMP()": "when, where or by whom",
        "day > now()": "when, where or by whom",
        "day > localtimestamp()": "when, where or by whom",
        "id > unix_timestamp()": "when, where or by whom",
        "rand() < 0.5": "another answer each time",
        "name = uuid()": "another answer each time",
        "name = current_user()": "by whom",
        "name = current_database()": "where or by whom",
        "randstr(3) = name": "another answer each time",
        "id > uniform(1, 5)": "another answer each time",
        "name = reflect('java.util.UUID', 'randomUUID')": "another answer each time",
        "aes_encrypt(name, '0000111122223333') = X''": "another answer each time",
        "base64(aes_encrypt(name, '0000111122223333', 'CBC', 'PKCS')) = name": "another answer each time",
        "aes_encrypt(name, '0000111122223333', name) = X''": "another answer each time",
        "aes_encrypt(name, '0000111122223333', 'GCM', 'DEFAULT', '', 'x') = X''": "another answer each time",
        "name = input_file_name()": "another answer each time",
        "id IN (SELECT 1)": "use ENRICH",
        "count(*) > 1": "more than one row",
        "row_number() OVER (ORDER BY id) = 1": "more than one row",
        "explode(tags) = 'x'": "The generator is not supported",
        "name": "of type string",
        "NULL": "of type void",
        "nope > 1": "`nope` cannot be resolved",
        "exists(tags, t -> t = to_json(struct(*)))": "name the columns",
        "xxhash64(*) % 10 = 0": "name the columns",
        "hash(* EXCEPT (v, ts)) > 0": "name the columns",
        "_change_type <> 'delete'": "`_change_type` cannot be resolved",
        "id > > 1": "PARSE_SYNTAX_ERROR",
    }
    for text, why in fickle.items():
        with pytest.raises(RouteHaltError) as caught:
            row_schema(world, schema, filter=text)
        decision = caught.value.decision
        assert (decision.reason, why in decision.message) == ("bad_expression", True), (text, decision.message)
        assert (
            decision.remedy
            == "Correct CDF_ROUTES__ORDERS_FILES__FILTER, then restart, or reload a changed file: cdf-replicator reload"
        )
    computed = {
        "window(day, '5 minutes')": "more than",
        "explode(tags)": "more than",
        "NULL": "no type",
        "to_json(struct(*))": "name the columns",
    }
    for text, why in computed.items():
        with pytest.raises(RouteHaltError, match=f"COMPUTED x of route orders_files .* can't be used: .*{why}"):
            row_schema(world, schema, computed=json.dumps({"x": text}))


def test_deterministic_filter_or_expression_is_accepted(world):
    schema = world.spark.createDataFrame([], SOME).schema
    for text in ("name = 'today'", "`a.b` > 1", "exists(tags, t -> t = name)", "day > '2026-01-01'", "NAME IS NULL"):
        row_schema(world, schema, filter=text)
    for text in ("id * qty > 1", "name = '*' OR name = '(*)'", "hash(at.*) % 10 = 0"):
        row_schema(world, schema, filter=text)
    for text in (
        "day > CAST(concat('2026', '-01-01') AS date)",
        "ts > CAST(name AS timestamp)",
        "day > CAST(1 / 0 AS string)",
    ):
        row_schema(world, schema, filter=text)
    for text in ("name > '12:00:00'", "ts > '2026-01-01 12:00:00'", "ts > to_timestamp('12:30', 'HH:mm')"):
        row_schema(world, schema, filter=text)
    for more in (
        "'ecb'",
        "'CBC', 'PKCS', X'00000000000000000000000000000000'",
        "'GCM', 'NONE', substr(sha2(name, 256), 1, 12)",
    ):
        row_schema(world, schema, filter=f"aes_encrypt(name, '0000111122223333', {more}) = X''")
    types = row_schema(
        world, schema, columns="id", computed='{"x": "name", "y": "size(tags)", "z": "CAST(NULL AS string)"}'
    )
    assert types.simpleString() == "struct<id:bigint,x:string,y:int,z:string>"


def test_wrong_expression_halts_before_any_write(world):
    world.environ[ROUTE + "FILTER"] = "nope > 1"
    world.create(rows=["(1, 'a')"])
    decision = world.run()
    assert (decision.action, decision.reason) == ("halt", "bad_expression")
    assert "FILTER of route orders_files (nope > 1) can't be used" in decision.message
    assert not (world.files / "orders").exists(), "the sink was not touched"
    (finding,) = validation._table(world.spark, world.settings, world.settings.routes["orders_files"])
    assert "nope" in finding.what
    world.environ[ROUTE + "FILTER"] = "id > 0"
    assert world.run() is None, "corrected, it starts"
    assert world.delivered() == world.expected()


def test_an_expression_that_fails_on_a_row_halts_and_loses_nothing(world):
    world.environ[ROUTE + "COMPUTED"] = '{"share": "100 / id"}'
    world.create(rows=["(1, 'a')"])
    assert world.run() is None
    world.insert("(0, 'z')")
    decision = world.run()
    assert (decision.action, decision.reason) == ("halt", "bad_expression")
    assert "DIVIDE_BY_ZERO" in decision.message
    assert "try_divide" in decision.remedy
    world.change("DELETE FROM {t} WHERE id = 0")
    assert world.run().reason == "bad_expression", "the feed still has the row, and the route skips nothing"


def test_names_that_differ_only_by_case_are_equal(world):
    schema = world.spark.createDataFrame([], SOME).schema
    with pytest.raises(RouteHaltError, match="gives two columns the name NAME, name"):
        row_schema(world, schema, computed='{"NAME": "id"}')
