"""The options parse ``N`` and ``T=N``."""

from __future__ import annotations

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from cdf_replicator.cli.options import by_table, known, starting_versions, with_route
from cdf_replicator.settings import load

slugs = st.from_regex(r"[a-z0-9]{1,8}", fullmatch=True)
versions = st.integers(0, 2**40)


@given(versions, st.sets(slugs, min_size=1))
def test_a_number_is_for_every_table(version: int, tables: set[str]) -> None:
    assert by_table(starting_versions([str(version)]), tables) == dict.fromkeys(tables, version)


@given(st.dictionaries(slugs, versions, min_size=1), versions)
def test_named_table_has_precedence_at_any_position(named: dict[str, int], version: int) -> None:
    words = [f"{table}={number}" for table, number in named.items()]
    tables = {*named, "another table"}
    expected = named | {"another table": version}
    assert by_table(starting_versions([*words, str(version)]), tables) == expected
    assert by_table(starting_versions([str(version), *words]), tables) == expected


def test_no_argument_sets_no_start() -> None:
    assert by_table(starting_versions([]), ["orders"]) == {}


def test_a_table_that_is_left_out_cannot_be_started() -> None:
    with pytest.raises(typer.BadParameter, match="not among the tables of --table"):
        by_table(starting_versions(["items=1"]), ["orders"])


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


def test_table_without_a_sink_needs_one(tmp_path) -> None:
    settings = load(SETTINGS | {"CDF_STATE_PATH": str(tmp_path)})
    with pytest.raises(typer.BadParameter, match="'items' has no route in this instance; give it SINKS"):
        with_route("--table", "items", settings)
