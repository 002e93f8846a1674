"""``verify`` compares a feature table with the aggregates of the pinned version of its source table."""

from __future__ import annotations

import json

import pytest

from cdf_replicator.commands.verify import summary
from cdf_replicator.errors.exceptions import RouteHaltError
from cdf_replicator.verification import verify
from connectors.delta.aggregation import order_dependent
from tests.support import light_table

AGGREGATES = {
    "total": "sum(amount)",
    "orders": "count(*)",
    "days": "count(DISTINCT day)",
    "last": "max(struct(day, id))",
    "mean": "avg(amount)",
    "ratio": "sum(weight) / count(*)",
    "largest": "max_by(id, amount)",
}


@pytest.fixture
def world(world):
    world.into_delta("features")
    world.environ |= {
        "CDF_ROUTES__ORDERS_FEATURES__ENTITY": "customer,since",
        "CDF_ROUTES__ORDERS_FEATURES__AGGREGATES": json.dumps(AGGREGATES),
        "CDF_ROUTES__ORDERS_FEATURES__FILTER": "id < 100",
    }
    world.features = str(world.folder / "features" / "orders_features")
    return world


def verified(world, **more):
    settings = world.settings
    route = settings.routes["orders_features"]
    return verify(world.spark, route, settings.sink(route.sink), world.state_path, **more)


def damage(world, statement):
    """Run an UPDATE of the feature table, in Spark only if it has to be."""
    if not light_table.changed(world.features, statement):
        world.spark.sql(statement.replace("{t}", f"delta.`{world.features}`"))


def row(number, customer, amount, day=1):
    return f"({number}, {customer}, timestamp'2026-01-01 00:00:00.000001', {amount}, date'2026-01-0{day}', 0.1D)"


def entity(customer):
    return json.dumps({"customer": customer, "since": "2026-01-01T00:00:00.000001Z"}, separators=(",", ":"))


def test_feature_table_is_compared_with_the_aggregates_of_the_delivered_version(world, here):
    world.create(
        "id bigint, customer string, since timestamp, amount decimal(10,2), day date, weight double",
        rows=[row(1, "'a'", 10), row(2, "'a'", "NULL", 2), row(3, "'b'", 7), row(4, "NULL", 1), row(200, "'z'", 9)],
    )
    assert world.run("orders_features") is None
    loaded = verified(world)
    world.change("UPDATE {t} SET customer = 'c' WHERE id = 2")
    world.change("DELETE FROM {t} WHERE id = 3")
    behind = verified(world)
    assert world.run("orders_features") is None
    caught_up, earlier = verified(world), verified(world, at=2)

    compared = [(each.version, each.newest, each.changed, each.comparison.rows) for each in (loaded, behind)]
    assert compared == [(1, 1, 0, 3), (1, 3, 3, 1)]
    assert [(each.version, each.changed, each.comparison.rows) for each in (caught_up, earlier)] == [
        (3, 0, 3),
        (2, 1, 3),
    ]
    for each in (loaded, behind, caught_up, earlier):
        assert each.comparison.equal, summary(each)
        assert each.left_out == ("ratio", "largest")

    damage(world, "UPDATE {t} SET orders = 9, ratio = 0 WHERE customer IS NULL")
    damage(world, "UPDATE {t} SET _cdf_guard = NULL WHERE customer = 'c'")
    damage(world, "UPDATE {t} SET customer = 'x' WHERE customer = 'a'")
    found = verified(world)
    assert {(each.kind, each.identity, each.column) for each in found.comparison.differences} == {
        ("different", entity(None), "orders"),
        ("foreign", entity("c"), None),
        ("extra", entity("x"), None),
        ("missing", entity("a"), None),
    }
    printed = here(world.environ, "verify", "orders_features")
    assert (printed.code, "on the order of rows: ratio, largest" in printed.output) == (1, True)
    with pytest.raises(RouteHaltError, match="Column ratio of route orders_features can't be compared"):
        verified(world, columns=["orders", "ratio"])


@pytest.mark.parametrize(
    ("text", "exact"),
    [
        ("count(DISTINCT id)", True),
        ("sum(id) / count(*)", True),
        ("avg(amount)", True),
        ("max(weight)", True),
        ("count_if(id > 1) FILTER (WHERE day IS NOT NULL)", True),
        ("bool_or(id > 1)", True),
        ("approx_count_distinct(id)", True),
        ("sum(weight)", False),
        ("avg(id)", False),
        ("stddev(amount)", False),
        ("max_by(id, amount)", False),
        ("coalesce(min(id), mode(id))", False),
        ("percentile_approx(id, 0.5)", False),
    ],
)
def test_aggregate_whose_value_may_depend_on_the_order_is_not_compared(spark, text, exact):
    rows = spark.createDataFrame([], "id bigint, customer string, amount decimal(10,2), day date, weight double")
    assert order_dependent(rows, ("customer",), {"n": text, "fine": "count(*)"}) == (() if exact else ("n",))
