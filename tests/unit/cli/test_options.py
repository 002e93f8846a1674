"""The options parse ``N`` and ``T=N``."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from cdf_replicator.cli.options import check_started, known, starting_versions, with_route
from cdf_replicator.runtime.reload import Selection
from cdf_replicator.settings import load

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cdf_replicator.route import Route

slugs = st.from_regex(r"[a-z0-9]{1,8}", fullmatch=True)
versions = st.integers(0, 2**40)


def started(words: list[str], tables: Iterable[str]) -> dict[str, int | None]:
    selection = Selection(frozenset(), starting_versions(words))
    routes = {table: SimpleNamespace(source=SimpleNamespace(slug=table)) for table in tables}
    return {table: selection.starting_version(cast("Route", route)) for table, route in routes.items()}


@given(versions, st.sets(slugs, min_size=1))
def test_a_number_is_for_every_table(version: int, tables: set[str]) -> None:
    assert started([str(version)], tables) == dict.fromkeys(tables, version)


@given(st.dictionaries(slugs, versions, min_size=1), versions)
def test_named_table_has_precedence_at_any_position(named: dict[str, int], version: int) -> None:
    words = [f"{table}={number}" for table, number in named.items()]
    expected = named | {"another table": version}
    assert started([*words, str(version)], expected) == expected
    assert started([str(version), *words], expected) == expected


def test_no_argument_sets_no_start() -> None:
    assert started([], ["orders"]) == {"orders": None}


@given(st.text().filter(lambda text: not text.isdecimal() and "=" not in text))
def test_invalid_version_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        starting_versions([f"orders={text}"])


def test_an_unknown_name_lists_what_there_is() -> None:
    with pytest.raises(typer.BadParameter, match="known: items, orders"):
        known("--table", "zzz", {"orders", "items"})


SETTINGS = {
    "CDF_TABLES__ORDERS__PATH": "/lake/orders",
    "CDF_TABLES__ORDERS__SINKS": "log",
    "CDF_TABLES__ITEMS__PATH": "/lake/items",
    "CDF_SINKS__LOG__TYPE": "delta_audit",
    "CDF_SINKS__LOG__PATH": "/lake/log",
}


def test_table_without_a_route_in_this_instance_is_refused(tmp_path) -> None:
    given = {"CDF_STATE_PATH": str(tmp_path), "CDF_TABLES__ITEMS__SINKS": "log", "CDF_ROUTES_INCLUDE": "orders_log"}
    settings = load(SETTINGS | given)
    assert [with_route("--table", name, settings) for name in ("orders", "orders_log")] == ["orders", "orders_log"]
    with pytest.raises(typer.BadParameter, match=r"'items' has no route in this instance; .* limits it to orders_log"):
        with_route("--table", "items", settings)


def test_table_that_is_not_followed_cannot_be_started(tmp_path) -> None:
    settings = load(SETTINGS | {"CDF_STATE_PATH": str(tmp_path)})
    check_started(starting_versions(["12", "orders=1"]), [], settings)
    check_started(starting_versions(["12", "orders=1"]), ["orders"], settings)
    with pytest.raises(typer.BadParameter, match="'items' has no route"):
        check_started(starting_versions(["items=1"]), [], settings)
    settings = load(SETTINGS | {"CDF_STATE_PATH": str(tmp_path), "CDF_TABLES__ITEMS__SINKS": "log"})
    with pytest.raises(typer.BadParameter, match="'items' is not among the tables of --table"):
        check_started(starting_versions(["items=1"]), ["orders"], settings)


def test_table_without_a_sink_needs_one(tmp_path) -> None:
    settings = load(SETTINGS | {"CDF_STATE_PATH": str(tmp_path)})
    with pytest.raises(typer.BadParameter, match="'items' has no route in this instance; give it SINKS"):
        with_route("--table", "items", settings)
