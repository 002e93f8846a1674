"""Tests of odd column names: every sink, key and expression keeps them unchanged."""

from __future__ import annotations

import json

import pytest
import redis

from tests.contract.elasticsearch_reader import Reader

ODD = "`a.b` string, `the id` int, `x:y!` int, `qu'o` string, `row` int, guard int, `key` string, `Order` int, `select` int"
COLUMNS = ODD + ", `comma, too` int, `ümlaut` int, st struct<`in.ner`: int, `in ner`: int>"
ROW = {
    "a.b": "k:1", "the id": 7, "x:y!": 1, "qu'o": "t", "row": 2, "guard": 3, "key": "me", "Order": 4, "select": 5,
    "comma, too": 6, "ümlaut": 8, "st": {"in.ner": 9, "in ner": 10}, "up per": "T",
}  # fmt: skip
KEY = "k%3A1:7"


@pytest.fixture
def odd(prepared):
    world = prepared(odd_table)
    world.environ["CDF_TABLES__ORDERS__KEYS"] = '["a.b", "the id"]'
    del world.environ["CDF_SINKS__FILES__TYPE"], world.environ["CDF_SINKS__FILES__PATH"]
    return world


def odd_table(world):
    world.create(COLUMNS, delta__columnMapping__mode="name")
    world.insert(
        f"('k:1', 7, 1, 't', 2, 3, 'me', 4, 5, 6, 8, {STRUCT})",
        f"('gone', 8, 1, 't', 2, 3, 'me', 4, 5, 6, 8, {STRUCT})",
    )


STRUCT = "named_struct('in.ner', 9, 'in ner', 10)"
COMPUTED = json.dumps({"up per": "upper(`qu'o`)"})


def shaped(world, sink, settings, route=()):
    """One route to this sink, with a filter and a computed column over odd names."""
    name = f"ORDERS_{sink.upper()}"
    world.environ["CDF_TABLES__ORDERS__SINKS"] = sink
    world.environ |= {f"CDF_SINKS__{sink.upper()}__{key}": value for key, value in settings.items()}
    more = {"FILTER": "`a.b` <> 'x' AND `row` > 0 AND order < 100", "COMPUTED": COMPUTED, **dict(route)}
    world.environ |= {f"CDF_ROUTES__{name}__{key}": value for key, value in more.items()}
    return name.lower()


def follow(world, route):
    """A snapshot, then an update, a delete and a row that leaves the filter."""
    assert world.run(route) is None
    world.change("UPDATE {t} SET guard = 33 WHERE `the id` = 7")
    world.change("DELETE FROM {t} WHERE `a.b` = 'gone'")
    assert world.run(route) is None
    return ROW | {"guard": 33}


def test_elasticsearch_reads_a_dot_as_a_path_and_keeps_other_names(odd, elasticsearch):
    route = shaped(odd, "search", {"TYPE": "elasticsearch", "HOSTS": elasticsearch.url})
    row, reader = follow(odd, route), Reader(elasticsearch.url)
    assert reader.document("orders", KEY) == row
    assert reader.document("orders", "gone:8") is None
    found = {
        "a.b": "k:1",
        "the id": 7,
        "x:y!": 1,
        "qu'o": "t",
        "Order": 4,
        "comma, too": 6,
        "ümlaut": 8,
        "up per": "t",
    }
    for name, value in found.items():
        assert reader.search("orders", {"match": {name: value}}) == [KEY], name
    assert reader.search("orders", {"match": {"st.in.ner": 9}}) == [KEY]


def test_elasticsearch_refuses_a_dot_that_nests_one_value_in_another(odd, elasticsearch):
    options = {"INDEX": "clash", "RENAME": json.dumps({"qu'o": "a"})}
    decision = odd.run(shaped(odd, "search", {"TYPE": "elasticsearch", "HOSTS": elasticsearch.url}, options))
    assert (decision.action, decision.reason) == ("halt", "sink_refused")
    assert "'a.b': the dot makes it a part of 'a', which is a value" in decision.message


@pytest.mark.parametrize(
    ("layout", "keys", "template", "key"),
    [
        ("json", '["a.b", "the id"]', None, f"orders:{KEY}"),
        ("hash", '["the id", "x:y!", "a.b"]', "odd:{a.b}:{x:y!}:{the id}", "odd:k%3A1:1:7"),
    ],
)
def test_redis_keeps_every_name_in_values_and_templates(odd, redis_server, layout, keys, template, key):
    options = {"KEYS": keys, **({"KEY_TEMPLATE": template} if template else {})}
    settings = {"TYPE": "redis", "URL": redis_server.url, "LAYOUT": layout}
    row = follow(odd, shaped(odd, "cache", settings, options))
    with redis.Redis.from_url(redis_server.url, decode_responses=True) as client:
        prefix = key.split(":")[0]
        assert list(client.scan_iter(f"{prefix}:*")) == [key]
        if layout == "json":
            assert json.loads(client.get(key)) == row
        else:
            fields = {name: json.dumps(value) if name == "st" else str(value) for name, value in row.items()}
            assert {**client.hgetall(key), "st": ""} == {**fields, "st": ""}
            assert json.loads(client.hget(key, "st")) == row["st"]


def test_the_audit_table_keeps_every_name(odd):
    row = follow(odd, shaped(odd, "audit", {"TYPE": "delta_audit", "PATH": str(odd.folder / "audit")}))
    audit = odd.spark.read.format("delta").load(odd.audit)
    (kept,) = audit.where("change_type = 'update_postimage'").select(*(f"`{name}`" for name in row)).collect()
    assert kept.asDict(recursive=True) == row
    assert [gone["the id"] for gone in audit.where("change_type = 'delete'").collect()] == [8]


def test_column_named_like_an_audit_column_needs_a_rename(odd):
    route = shaped(
        odd, "audit", {"TYPE": "delta_audit", "PATH": str(odd.folder / "audit")}, {"RENAME": '{"key": "batch"}'}
    )
    decision = odd.run(route)
    assert (decision.action, decision.reason) == ("halt", "sink_refused")
    assert "column batch of route orders_audit has the name of an audit column" in decision.message
