"""From tables, sinks and routes as given to the routes that run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cdf_replicator.settings import ConfigurationError, load

if TYPE_CHECKING:
    from cdf_replicator.settings.parsing.errors import ConfigProblem

pytestmark = pytest.mark.usefixtures("example_sinks")

GOOD = {
    "CDF_STATE_PATH": "/state",
    "CDF_TABLES__ORDERS__PATH": "/orders",
    "CDF_TABLES__ORDERS__KEYS": "id",
    "CDF_TABLES__ORDERS__SINKS": "log,store",
    "CDF_TABLES__ITEMS__PATH": "/items",
    "CDF_TABLES__ITEMS__KEYS": "order_id,line",
    "CDF_TABLES__ITEMS__SINKS": "store",
    "CDF_SINKS__LOG__TYPE": "example_log",
    "CDF_SINKS__LOG__PATH": "/log",
    "CDF_SINKS__STORE__TYPE": "example_store",
    "CDF_SINKS__STORE__HOSTS": "http://a:9200",
}


def the_problem(changes: dict[str, str], without: tuple[str, ...] = ()) -> ConfigProblem:
    with pytest.raises(ConfigurationError) as caught:
        load({name: value for name, value in (GOOD | changes).items() if name not in without})
    (problem,) = caught.value.problems
    return problem


def test_a_tables_sinks_make_its_routes() -> None:
    assert list(load(GOOD).routes) == ["items_store", "orders_log", "orders_store"]


def test_a_route_is_refined_by_its_name() -> None:
    route = load(
        GOOD
        | {
            "CDF_ROUTES__ORDERS_STORE__FILTER": "status <> 'draft'",
            "CDF_ROUTES__ORDERS_STORE__COLUMNS": "id,name",
            "CDF_ROUTES__ORDERS_STORE__RENAME": "name=title",
            "CDF_ROUTES__ORDERS_STORE__KEYS": "name",
            "CDF_ROUTES__ORDERS_STORE__INDEX": "other",
        },
    ).routes["orders_store"]
    assert (route.filter, route.columns, route.rename) == ("status <> 'draft'", ("id", "name"), {"name": "title"})
    assert (route.keys, route.options.index, route.options.layout) == (("name",), "other", "json")


def test_route_can_be_defined_in_full() -> None:
    changes = {"CDF_ROUTES__R__TABLE": "orders", "CDF_ROUTES__R__SINK": "store", "CDF_ROUTES__R__INDEX": "other"}
    routes = load(GOOD | changes).routes
    assert sorted(routes) == ["items_store", "orders_log", "orders_store", "r"]
    assert (routes["r"].source.slug, routes["r"].sink) == ("orders", "store")


def test_refined_route_can_repeat_its_table_and_sink() -> None:
    changes = {"CDF_ROUTES__ORDERS_LOG__TABLE": "orders", "CDF_ROUTES__ORDERS_LOG__SINK": "log"}
    assert load(GOOD | changes).routes["orders_log"].sink == "log"


def test_a_refined_route_cannot_change_its_table() -> None:
    problem = the_problem({"CDF_ROUTES__ORDERS_LOG__TABLE": "items"})
    assert problem.variable == "CDF_ROUTES__ORDERS_LOG__TABLE"
    assert problem.expected.startswith("'orders', since CDF_TABLES__ORDERS__SINKS already makes")


def test_two_shorthands_of_one_name_are_an_error() -> None:
    problem = the_problem(
        {
            "CDF_TABLES__A__PATH": "/a",
            "CDF_TABLES__A__SINKS": "b_c",
            "CDF_TABLES__A_B__PATH": "/ab",
            "CDF_TABLES__A_B__SINKS": "c",
            "CDF_SINKS__B_C__TYPE": "example_log",
            "CDF_SINKS__B_C__PATH": "/1",
            "CDF_SINKS__C__TYPE": "example_log",
            "CDF_SINKS__C__PATH": "/2",
        },
    )
    assert problem.variable == "CDF_TABLES__A__SINKS"
    assert "table 'a_b' with sink 'c' and table 'a' with sink 'b_c' both give 'a_b_c'" in problem.expected


def test_a_route_that_refines_nothing_names_the_nearest() -> None:
    problem = the_problem({"CDF_ROUTES__ORDER_STORE__FILTER": "x > 1"})
    assert problem.variable == "CDF_ROUTES__ORDER_STORE__TABLE"
    assert "did you mean 'orders_store'?" in problem.expected


def test_a_route_with_a_table_and_no_sink_lists_the_sinks() -> None:
    problem = the_problem({"CDF_ROUTES__R__TABLE": "orders"})
    assert (problem.variable, problem.given) == ("CDF_ROUTES__R__SINK", None)
    assert problem.expected.endswith("log, store")


def test_an_unknown_table_or_sink_names_the_nearest() -> None:
    problem = the_problem({"CDF_ROUTES__R__TABLE": "order", "CDF_ROUTES__R__SINK": "log"})
    assert problem.variable == "CDF_ROUTES__R__TABLE"
    assert "did you mean 'orders'?" in problem.expected
    problem = the_problem({"CDF_TABLES__ORDERS__SINKS": "log,stor"})
    assert problem.variable == "CDF_TABLES__ORDERS__SINKS"
    assert "did you mean 'store'?" in problem.expected


def test_upsert_sink_needs_keys_and_append_sink_does_not() -> None:
    problem = the_problem({}, without=("CDF_TABLES__ORDERS__KEYS",))
    assert problem.variable == "CDF_TABLES__ORDERS__KEYS"
    assert "'store' keeps one entry per key" in problem.expected
    without = {name: value for name, value in GOOD.items() if name != "CDF_TABLES__ORDERS__KEYS"}
    assert load(without | {"CDF_TABLES__ORDERS__SINKS": "log"}).routes["orders_log"].keys == ()


def test_two_routes_cannot_write_to_one_target() -> None:
    problem = the_problem({"CDF_ROUTES__ORDERS_STORE__INDEX": "items"})
    assert problem.variable == "CDF_ROUTES__ORDERS_STORE"
    assert "route 'items_store' already writes to 'index items'" in problem.expected
    assert "INDEX" in problem.expected


def test_prefix_target_cannot_begin_with_another_target() -> None:
    assert "already writes to" in the_problem({"CDF_ROUTES__ORDERS_STORE__INDEX": "items_old"}).expected


def test_targets_that_are_not_prefixes_can_begin_alike() -> None:
    changes = {"CDF_TABLES__ORDERS_OLD__PATH": "/old", "CDF_TABLES__ORDERS_OLD__SINKS": "log"}
    assert "orders_old_log" in load(GOOD | changes).routes


def test_two_sinks_with_the_same_settings_are_one_target() -> None:
    changes = {
        "CDF_SINKS__TWIN__TYPE": "example_store",
        "CDF_SINKS__TWIN__HOSTS": "http://a:9200",
        "CDF_TABLES__ORDERS__SINKS": "store,twin",
    }
    assert the_problem(changes).variable == "CDF_ROUTES__ORDERS_TWIN"
    assert load(GOOD | changes | {"CDF_SINKS__TWIN__HOSTS": "http://b:9200"}).routes["orders_twin"].sink == "twin"


@pytest.mark.parametrize(
    ("changes", "variable", "words"),
    [
        ({"COLUMNS": "id,name,ID"}, "COLUMNS", "each column once"),
        ({"COLUMNS": "id", "RENAME": "name=title"}, "RENAME", "columns of COLUMNS only"),
        ({"COLUMNS": "id,name", "RENAME": "name=ID"}, "RENAME", "two columns would share it"),
        ({"RENAME": "a=x,b=X"}, "RENAME", "two columns would share it"),
        ({"RENAME": "a=x,A=y"}, "RENAME", "each column once"),
        ({"KEYS": "id,id"}, "KEYS", "each column once"),
        ({"COLUMNS": "[]"}, "COLUMNS", "at least 1"),
    ],
)
def test_no_two_columns_share_a_name(changes: dict[str, str], variable: str, words: str) -> None:
    problem = the_problem({f"CDF_ROUTES__ORDERS_LOG__{name}": value for name, value in changes.items()})
    assert problem.variable == f"CDF_ROUTES__ORDERS_LOG__{variable}"
    assert words in problem.expected


def test_columns_may_swap_names() -> None:
    changes = {"CDF_ROUTES__ORDERS_LOG__COLUMNS": "a,b", "CDF_ROUTES__ORDERS_LOG__RENAME": "a=b,b=a"}
    assert load(GOOD | changes).routes["orders_log"].rename == {"a": "b", "b": "a"}


def test_an_instance_runs_the_routes_it_includes() -> None:
    settings = load(GOOD | {"CDF_ROUTES_INCLUDE": "orders_log, items_store"})
    assert list(settings.routes) == ["items_store", "orders_log"]


def test_a_route_left_to_another_instance_still_counts_for_targets() -> None:
    changes = {"CDF_ROUTES_INCLUDE": "orders_log", "CDF_ROUTES__ORDERS_STORE__INDEX": "items"}
    assert "already writes to" in the_problem(changes).expected


def test_a_table_without_sinks_delivers_nothing() -> None:
    problem = the_problem({}, without=("CDF_TABLES__ORDERS__SINKS", "CDF_TABLES__ITEMS__SINKS"))
    assert "nothing is delivered" in problem.expected


def test_invalid_table_is_reported_once_and_not_by_its_routes() -> None:
    problem = the_problem({"CDF_ROUTES__ORDERS_LOG__FILTER": "x > 1"}, without=("CDF_TABLES__ORDERS__PATH",))
    assert problem.variable == "CDF_TABLES__ORDERS__PATH"


def test_option_without_a_target_is_reported_with_its_value() -> None:
    changes = {
        "CDF_TABLES__ORDERS__SINKS": "cache",
        "CDF_SINKS__CACHE__TYPE": "redis",
        "CDF_SINKS__CACHE__URL": "redis://other",
        "CDF_ROUTES__ORDERS_CACHE__KEY_TEMPLATE": "orders",
    }
    problem = the_problem(changes)
    assert (problem.variable, problem.given) == ("CDF_ROUTES__ORDERS_CACHE__KEY_TEMPLATE", "'orders'")
    assert problem.expected.startswith(
        "The key template 'orders' of route orders_cache does not name exactly the key columns"
    )
