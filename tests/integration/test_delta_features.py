"""A feature table equals its query over the whole source, and only entities whose rows changed are computed again."""

from __future__ import annotations

import pytest

from cdf_replicator.requests import Request
from connectors.delta import query

QUERY = (
    "SELECT customer, sum(amount) AS total, count(*) AS orders, max_by(id, amount) AS largest FROM {source} "
    "GROUP BY customer HAVING sum(amount) > 0"
)


@pytest.fixture
def world(world):
    world.environ |= {
        "CDF_TABLES__ORDERS__SINKS": "features",
        "CDF_SINKS__FEATURES__TYPE": "delta_features",
        "CDF_SINKS__FEATURES__PATH": str(world.folder / "features"),
        "CDF_ROUTES__ORDERS_FEATURES__ENTITY": "customer",
        "CDF_ROUTES__ORDERS_FEATURES__QUERY": QUERY,
        "CDF_ROUTES__ORDERS_FEATURES__FILTER": "NOT test",
        "CDF_TABLES__ORDERS__MAX_FILES_PER_TRIGGER": "3",
    }
    del world.environ["CDF_SINKS__FILES__TYPE"], world.environ["CDF_SINKS__FILES__PATH"]
    world.features = f"delta.`{world.folder / 'features' / 'orders_features'}`"
    return world


def run(world, **more):
    return world.run("orders_features", **more)


def expected(world, text=QUERY):
    return sorted(
        map(tuple, world.sql(text.replace("{source}", "(SELECT * FROM {t} WHERE NOT test)")).collect()), key=repr
    )


def held(world, *more):
    return sorted(map(tuple, world.spark.table(world.features).drop("_cdf_guard").collect()), key=repr)


def guards(world):
    return {row["customer"]: row["_cdf_guard"] for row in world.spark.table(world.features).collect()}


def test_the_features_equal_the_query_after_everything(world, lose_commit):
    world.create(
        "id bigint, customer string, amount decimal(10,2), test boolean",
        rows=[
            "(1, 'a', 10, false)",
            "(2, 'a', 5, false)",
            "(3, 'b', 7, false)",
            "(4, NULL, 1, false)",
            "(5, 'c', 2, false)",
        ],
    )
    assert run(world) is None
    assert held(world) == expected(world)
    before = guards(world)
    world.sql("UPDATE {t} SET customer = 'b' WHERE id = 2")
    world.insert("(6, NULL, 4, false)", "(7, 'd', 4, true)")
    assert run(world) is None
    assert held(world) == expected(world), "an order that moved counts for both customers"
    assert {name for name, guard in guards(world).items() if guard != before[name]} == {"a", "b", None}

    world.sql("DELETE FROM {t} WHERE customer = 'c'")
    world.sql("UPDATE {t} SET test = false WHERE id = 7")
    world.sql(
        "MERGE INTO {t} t USING (SELECT * FROM VALUES (1, 'e'), (8, 'f') AS s(id, customer)) s ON t.id = s.id "
        "WHEN MATCHED THEN UPDATE SET customer = s.customer "
        "WHEN NOT MATCHED THEN INSERT (id, customer, amount, test) VALUES (s.id, s.customer, 3, false)"
    )
    world.overwrite(
        world.sql("SELECT id, customer, CAST(amount * 2 AS decimal(10,2)) AS amount, test FROM {t} WHERE id <> 8")
    )
    assert run(world) is None
    assert held(world) == expected(world)
    assert {row[0] for row in held(world)} == {None, "b", "d", "e"}, "entities without rows are gone"
    lose_commit("orders_features")
    assert run(world) is None, "Spark gives the batch again"
    world.environ["CDF_TABLES__ORDERS__MAX_FILES_PER_TRIGGER"] = "100"
    assert run(world, ask=Request("replay", "orders_features", 1)) is None
    assert run(world, ask=Request("replay", "orders_features", 1, 2)) is None
    assert held(world) == expected(world)


def test_another_query_needs_a_resync_which_repairs_too(world):
    world.create("id bigint, customer string, test boolean", rows=["(1, 'a', false)", "(2, 'b', false)"])
    first, second = ("SELECT customer, count(*) AS n", "SELECT customer, min(id) AS first, 'x' AS mark")
    group = " FROM {source} GROUP BY customer"
    world.environ["CDF_ROUTES__ORDERS_FEATURES__QUERY"] = first + group
    assert run(world) is None
    world.environ["CDF_ROUTES__ORDERS_FEATURES__QUERY"] = second + group
    verdict = run(world)
    assert "ENTITY or QUERY of route orders_features has changed" in verdict.what
    assert verdict.next_step == "Run: cdf-replicator resync orders_features"
    world.sql("DELETE FROM {t} WHERE id = 2")
    assert run(world, ask=Request("resync", "orders_features", max_removed_share=1.0)) is None
    assert held(world) == expected(world, second + group) == [("a", 1, "x")]
    world.spark.sql(f"INSERT INTO {world.features} VALUES ('z', 9, 'y', NULL)")
    assert run(world, ask=Request("resync", "orders_features", max_removed_share=1.0)) is None
    assert held(world) == [("a", 1, "x")]
    world.environ["CDF_ROUTES__ORDERS_FEATURES__RENAME"] = "customer=client"
    assert (
        "ENTITY of route orders_features names customer, which the route leaves out, renames"
        in run(world, ask=Request("resync", "orders_features", max_removed_share=1.0)).what
    )


def test_a_struct_that_lost_a_field_is_merged_into_the_wider_one_of_the_table(world):
    text = "SELECT customer, max_by(s, id) AS s FROM {source} GROUP BY customer"
    world.environ["CDF_ROUTES__ORDERS_FEATURES__QUERY"] = text
    columns = "id bigint, customer string, s struct<a:int,b:string,c:string>, test boolean"
    world.create(columns, delta__columnMapping__mode="name")
    world.insert("(1, 'a', struct(1, 'b', 'c'), false)", "(2, 'z', struct(2, 'b', 'c'), false)")
    assert run(world) is None
    world.sql("ALTER TABLE {t} DROP COLUMN s.b")
    world.environ["CDF_TABLES__ORDERS__ALLOW_SCHEMA_CHANGE"] = str(world.version())
    world.insert("(3, 'a', struct(3, 'd'), false)", "(4, 'n', NULL, false)")
    assert run(world) is None
    features = world.spark.table(world.features).select("customer", "s.a", "s.b", "s.c", "s").collect()
    assert sorted(tuple(row)[:4] for row in features) == [
        ("a", 3, None, "d"),
        ("n", None, None, None),
        ("z", 2, "b", "c"),
    ]
    assert [row.s for row in features if row.customer == "n"] == [None]


@pytest.mark.parametrize(
    "text",
    [
        QUERY,
        "SELECT day, customer, count(DISTINCT id) AS n FROM {source} GROUP BY customer, day;",
        "WITH x AS (SELECT customer, id - lag(id) OVER (PARTITION BY customer ORDER BY id) AS d FROM {source}) SELECT customer, max(d) AS d FROM x GROUP BY customer",
    ],
)
def test_a_query_whose_entities_stand_by_themselves_is_taken(spark, text):
    entity = ("customer", "day") if "day" in text else ("customer",)
    assert query.checked(text, entity, source(spark)).fieldNames()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("SELEC customer FROM {source}", "can't be run"),
        ("SELECT customer, sum(nothing) FROM {source} GROUP BY customer", "can't be run"),
        ("SELECT count(*) AS n FROM {source}", "has no column customer"),
        ("SELECT customer, rand() AS r FROM {source} GROUP BY customer", "by itself"),
        ("SELECT customer, max(datediff(current_date(), day)) AS age FROM {source} GROUP BY customer", "by itself"),
        ("SELECT customer, day, count(*) AS n FROM {source} GROUP BY customer, day", "several rows"),
        ("SELECT customer, amount FROM {source}", "several rows"),
        ("SELECT customer, s FROM (SELECT customer, sum(id) AS s FROM {source} GROUP BY 1) LIMIT 5", "rows of others"),
        ("SELECT customer, s, rank() OVER (ORDER BY s) AS r FROM (SELECT customer, sum(id) AS s FROM {source} GROUP BY 1)", "rows of others"),
        ("SELECT customer, sum(id) / (SELECT sum(id) FROM {source}) AS share FROM {source} GROUP BY customer", "rows of others"),
        ("SELECT upper(customer) AS customer, count(*) AS n FROM {source} GROUP BY 1", "rows of others"),
        ("SELECT region AS customer, count(*) AS n FROM {source} GROUP BY 1", "rows of others"),
        ("SELECT a.customer, count(*) AS n FROM {source} a JOIN {source} b ON a.day = b.day GROUP BY a.customer", "rows of others"),
        ("SELECT customer, count(*) AS n FROM {source} JOIN range(3) r ON r.id = amount GROUP BY customer", "something else"),
    ],
)  # fmt: skip
def test_a_query_that_can_not_be_kept_up_to_date_is_refused_with_the_reason(spark, text, why):
    with pytest.raises(query.QueryError, match=why):
        query.checked(text, ("customer",), source(spark))


def source(spark):
    return spark.createDataFrame([], "id bigint, customer string, region string, day date, amount decimal(10,2)")
