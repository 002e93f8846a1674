"""Tests of the plan of a reload: which routes are concerned, and what differs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
import yaml

from cdf_replicator.runtime.reload import Selection
from cdf_replicator.runtime.reload.plan import NOTHING, Difference, ReloadPlan, compare, in_force
from cdf_replicator.settings import load
from cdf_replicator.settings.routes import Target
from tests.contract.folder_sink import FolderSink

if TYPE_CHECKING:
    from cdf_replicator.settings import Settings

BASE = {
    "CDF_STATE_PATH": "/var/lib/cdf",
    "CDF_TABLES__ORDERS__PATH": "/lake/orders",
    "CDF_TABLES__ORDERS__KEYS": "id",
    "CDF_TABLES__ORDERS__SINKS": "search,cache",
    "CDF_TABLES__STOCK__PATH": "/lake/stock",
    "CDF_TABLES__STOCK__KEYS": "id",
    "CDF_TABLES__STOCK__SINKS": "cache",
    "CDF_SINKS__SEARCH__TYPE": "elasticsearch",
    "CDF_SINKS__SEARCH__HOSTS": "http://es:9200",
    "CDF_SINKS__CACHE__TYPE": "redis",
    "CDF_SINKS__CACHE__URL": "redis://cache:6379/0",
}
ALL = {"orders_search", "orders_cache", "stock_cache"}


def settings(**changed: str | None) -> Settings:
    given = {**BASE, **{f"CDF_{name}": value for name, value in changed.items()}}
    return load({name: value for name, value in given.items() if value is not None})


def plan(before: Settings, after: Settings, *tables: str) -> ReloadPlan:
    return compare(before, after, Selection(frozenset(tables)).routes)


def concerned(found: ReloadPlan) -> dict[str, str]:
    return {action.route: action.action for action in found.actions}


def named(found: ReloadPlan, route: str) -> list[str]:
    (action,) = (action for action in found.actions if action.route == route)
    return [difference.path for difference in action.differences]


def test_equal_configurations_need_nothing():
    found = plan(settings(), settings())
    assert found == ReloadPlan()
    assert not found.changes_running
    assert found.text() == NOTHING


@pytest.mark.parametrize(
    ("variable", "value", "routes", "path"),
    [
        ("ROUTES__ORDERS_SEARCH__FILTER", "id > 1", {"orders_search"}, "routes.orders_search.filter"),
        ("ROUTES__ORDERS_SEARCH__COLUMNS", "id,name", {"orders_search"}, "routes.orders_search.columns"),
        ("ROUTES__ORDERS_SEARCH__COMPUTED", '{"a": "id + 1"}', {"orders_search"}, "routes.orders_search.computed"),
        ("ROUTES__ORDERS_SEARCH__SCHEMA_CHANGES", "fail", {"orders_search"}, "routes.orders_search.schema_changes"),
        ("ROUTES__ORDERS_SEARCH__INDEX", "other", {"orders_search"}, "routes.orders_search.index"),
        ("TABLES__ORDERS__MAX_FILES_PER_TRIGGER", "5", {"orders_search", "orders_cache"}, None),
        ("TABLES__ORDERS__ALLOW_SCHEMA_CHANGE", "12", {"orders_search", "orders_cache"}, None),
        ("SINKS__CACHE__URL", "redis://other:6379/0", {"orders_cache", "stock_cache"}, "sinks.cache.url"),
        ("DELIVERY__RETRY_SECONDS", "5", ALL, "delivery.retry_seconds"),
        ("TRIGGER_SECONDS", "5", ALL, "trigger_seconds"),
        ("SHUTDOWN_SECONDS", "5", ALL, "shutdown_seconds"),
    ],
)
def test_only_routes_that_read_a_setting_are_restarted(variable, value, routes, path):
    found = plan(settings(), settings(**{variable: value}))
    assert concerned(found) == dict.fromkeys(routes, "restart")
    assert found.comparisons == found.deferred == ()
    expected = path or variable.lower().replace("__", ".")
    assert all(named(found, route) == [expected] for route in routes)


def test_joined_tables_are_compared():
    joined = {
        "ROUTES__ORDERS_CACHE__ENRICH__PLANE__PATH": "/lake/plane",
        "ROUTES__ORDERS_CACHE__ENRICH__PLANE__ON": "tail",
        "ROUTES__ORDERS_CACHE__ENRICH__PLANE__COLUMNS": "seats",
    }
    found = plan(settings(**joined), settings(**joined | {"ROUTES__ORDERS_CACHE__ENRICH__PLANE__COLUMNS": "engine"}))
    assert named(found, "orders_cache") == ["routes.orders_cache.enrich.plane.columns"]
    assert len(named(plan(settings(**joined), settings()), "orders_cache")) == 4


def test_sink_that_follows_a_table_starts_and_leaves_the_others_alone():
    found = plan(settings(), settings(TABLES__STOCK__SINKS="cache,search"))
    assert concerned(found) == {"stock_search": "start"}
    back = plan(settings(TABLES__STOCK__SINKS="cache,search"), settings())
    assert concerned(back) == {"stock_search": "stop"}
    assert (found.begins, found.ends, back.begins, back.ends) == (["stock_search"], [], [], ["stock_search"])


def test_routes_that_are_left_out_stop():
    found = plan(settings(), settings(ROUTES_INCLUDE="orders_search"))
    assert concerned(found) == {"orders_cache": "stop", "stock_cache": "stop"}


def test_keys_of_a_table_concern_routes_without_keys_of_their_own():
    own = {"ROUTES__ORDERS_CACHE__KEYS": "id"}
    found = plan(settings(**own), settings(**own, TABLES__ORDERS__KEYS="id,region"))
    assert concerned(found) == {"orders_search": "restart"}
    assert named(found, "orders_search") == ["routes.orders_search.keys"]


def test_keys_that_move_to_the_route_are_no_difference():
    assert plan(settings(), settings(ROUTES__ORDERS_CACHE__KEYS="id")).actions == ()


def test_unused_sink_and_table_concern_no_route():
    given = {"SINKS__SPARE__TYPE": "redis", "SINKS__SPARE__URL": "redis://spare:6379/0", "TABLES__IDLE__PATH": "/idle"}
    assert plan(settings(), settings(**given)) == ReloadPlan()


def test_route_that_changes_its_table_and_sink_is_restarted():
    route = {
        "TABLES__ORDERS__SINKS": "cache",
        "ROUTES__MAIN__TABLE": "orders",
        "ROUTES__MAIN__SINK": "search",
        "ROUTES__MAIN__INDEX": "main",
    }
    moved = route | {"ROUTES__MAIN__TABLE": "stock"}
    found = plan(settings(**route), settings(**moved))
    assert concerned(found) == {"main": "restart"}
    assert {"routes.main.table", "tables.orders.path", "tables.stock.path"} <= set(named(found, "main"))


@pytest.mark.parametrize(
    ("changed", "resync"),
    [
        ({"ROUTES__ORDERS_SEARCH__FILTER": "id > 1"}, True),
        ({"ROUTES__ORDERS_SEARCH__INDEX": "other"}, True),
        ({"SINKS__SEARCH__API_KEY": "secret-of-two"}, False),
        ({"TABLES__ORDERS__MAX_FILES_PER_TRIGGER": "5"}, False),
    ],
)
def test_plan_names_routes_whose_target_needs_a_resync(changed, resync):
    found = plan(settings(), settings(**changed))
    action = next(action for action in found.actions if action.route == "orders_search")
    assert action.resync is resync
    assert ("cdf-replicator resync orders_search" in found.text()) is resync


def test_secret_differs_and_is_not_shown(tmp_path):
    file = tmp_path / "key"
    file.write_text("first-secret")
    given = {"SINKS__SEARCH__API_KEY_FILE": str(file)}
    before = settings(**given)
    file.write_text("second-secret")
    found = plan(before, settings(**given))
    assert concerned(found) == {"orders_search": "restart"}
    assert str(found.actions[0]) == "sinks.search.api_key: changed"
    assert "secret" not in found.text()
    url = plan(settings(), settings(SINKS__CACHE__URL="redis://user:hidden-word@cache:6379/0"))
    assert "hidden-word" not in found.text() + repr(url) + url.text()


@pytest.mark.parametrize(
    ("variable", "value", "path"),
    [
        ("STATE_PATH", "/elsewhere", "state_path"),
        ("HTTP__BIND_PORT", "1234", "http.bind_port"),
        ("HTTP__TOKEN", "hidden-word", "http.token"),
        ("LOG__LEVEL", "debug", "log.level"),
        ("SPARK__MASTER", "local[1]", "spark.master"),
        ("SPARK__CONF", json.dumps({"spark.my.password": "hidden-word"}), "spark.conf[spark.my.password]"),
    ],
)
def test_settings_of_the_start_are_deferred_and_block_nothing(variable, value, path):
    filtered = {variable: value, "ROUTES__ORDERS_SEARCH__FILTER": "id > 1"}
    before, after = settings(), settings(**filtered)
    found = plan(before, after)
    assert concerned(found) == {"orders_search": "restart"}
    assert [difference.path for difference in found.deferred] == [path]
    assert f"takes effect at the next start: {path}: " in found.text()
    assert "hidden-word" not in found.text()
    running = in_force(before, after)
    assert (running.state_path, running.http, running.spark, running.log) == (
        before.state_path,
        before.http,
        before.spark,
        before.log,
    )
    assert running.routes == after.routes
    assert plan(running, after).deferred == found.deferred, "said again until the next start"


def test_period_of_comparisons_changes_without_a_restart():
    found = plan(settings(), settings(VERIFY__EVERY_HOURS="24"))
    assert found.actions == ()
    assert found.comparisons == (Difference("verify.every_hours", None, "24.0"),)
    assert found.changes_running
    assert found.text() == "takes effect at once: verify.every_hours: not set -> 24.0"


def test_tables_of_the_command_line_stay_selected():
    changed = settings(TRIGGER_SECONDS="5", TABLES__STOCK__SINKS="cache,search")
    assert concerned(plan(settings(), changed, "orders")) == {"orders_search": "restart", "orders_cache": "restart"}


def test_text_has_a_line_per_route():
    afterwards = "(then, if it has delivered: cdf-replicator resync orders_cache)"
    found = plan(
        settings(),
        settings(TABLES__STOCK__SINKS="search", ROUTES__ORDERS_CACHE__KEY_TEMPLATE="o:{id}", LOG__LEVEL="debug"),
    )
    assert found.text(dry_run=True).splitlines() == [
        f"orders_cache  restart  routes.orders_cache.key_template: not set -> o:{{id}} {afterwards}",
        "stock_cache   stop",
        "stock_search  start",
        "takes effect at the next start: log.level: info -> debug",
        "Nothing was changed.",
    ]


def test_order_and_notation_of_the_file_are_no_difference(tmp_path):
    def of_file(tables):
        file = tmp_path / "cdf.yaml"
        file.write_text(yaml.safe_dump({"tables": tables}, sort_keys=False))
        return settings(CONFIG_FILE=str(file), **dict.fromkeys(names))

    names = [name.removeprefix("CDF_") for name in BASE if "TABLES" in name]
    orders = {"path": "/lake/orders", "keys": "id", "sinks": "search,cache"}
    listed = {"sinks": ["search", "cache"], "keys": ["id"], "path": "/lake/orders"}
    stock = {"path": "/lake/stock", "keys": "id", "sinks": "cache"}
    assert (
        plan(of_file({"orders": orders, "stock": stock}), of_file({"stock": stock, "orders": listed})) == ReloadPlan()
    )


def test_route_waits_for_its_own_thread_and_former_writers_of_its_target():
    before = settings(TABLES__LATE__PATH="/lake/late", TABLES__LATE__KEYS="id", TABLES__LATE__SINKS="cache")
    moved = settings(ROUTES__STOCK_CACHE__KEY_TEMPLATE="late:{id}", TRIGGER_SECONDS="5")
    assert plan(before, moved).waits == {
        "orders_search": {"orders_search"},
        "orders_cache": {"orders_cache"},
        "stock_cache": {"stock_cache", "late_cache"},
    }
    assert plan(settings(), before).waits == {"late_cache": frozenset()}


@pytest.mark.parametrize(("path", "waits"), [("/out", True), ("/elsewhere", False)])
def test_targets_without_addresses_are_compared_by_their_texts(path, waits):
    """The settings of the two sinks differ, and may name the same folder."""
    folders = [
        NumberedFolderSink(NumberedFolderSink.Settings(type="folder", path=each, order=n))
        for n, each in enumerate(("/out", path))
    ]
    route = settings().routes["orders_cache"]
    former, following = (Target.of(route, sink) for sink in folders)
    assert not following.meets(former)
    assert following.may_meet(former) is waits


class NumberedFolderSink(FolderSink):
    """A sink that is not ``Addressed``."""

    class Settings(FolderSink.Settings):
        order: int
