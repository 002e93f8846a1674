"""The identity of a route contains the properties that a checkpoint depends on."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdf_replicator.route import Dimension, Route, Source
from connectors import RouteOptions

ROUTE = Route(
    name="orders_search",
    source=Source("orders", path="/lake/orders"),
    sink="search",
    keys=("id",),
    filter="amount > 0",
    columns=("id", "amount"),
    rename={"amount": "total"},
    options=RouteOptions(),
)


def test_its_location_is_its_path_or_its_name() -> None:
    assert Source("orders", path="/lake/orders").location == "/lake/orders"
    assert Source("orders", name="main.orders").location == "main.orders"


def test_a_sink_sees_its_names_keys_and_options() -> None:
    spec = ROUTE.spec(owner="state-1", epoch=3)
    assert (spec.name, spec.table, spec.keys, spec.owner, spec.epoch) == (
        "orders_search",
        "orders",
        ("id",),
        "state-1",
        3,
    )
    assert spec.options is ROUTE.options


CARRIERS = Dimension("carriers", "/lake/carriers", None, {"carrier": "code"}, {"name": "carrier_name"})


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"keys": ("id", "region")}, "keys"),
        ({"keys": ("region",)}, "keys"),
        ({"filter": None}, "filter"),
        ({"columns": None}, "columns"),
        ({"columns": ("id",)}, "columns"),
        ({"rename": {}}, "rename"),
        ({"computed": {"total": "a + b"}}, "computed"),
        ({"enrich": (CARRIERS,)}, "enrich"),
    ],
)
def test_another_definition_is_another_identity_and_says_where(change: dict, named: str) -> None:
    other = replace(ROUTE, **change)
    before, after = ROUTE.identity("index orders"), other.identity("index orders")
    assert [name for name in {**before, **after} if before.get(name) != after.get(name)] == [named]


@pytest.mark.parametrize(
    "other",
    [
        {"path": "/lake/other"},
        {"on": {"carrier": "id"}},
        {"columns": {"name": "carrier"}},
        {"slug": "airlines"},
    ],
)
def test_another_joined_table_is_another_identity(other: dict) -> None:
    route = replace(ROUTE, enrich=(CARRIERS,))
    assert replace(route, enrich=(replace(CARRIERS, **other),)).identity("x") != route.identity("x")


def test_another_target_is_another_identity() -> None:
    assert ROUTE.identity("index orders") != ROUTE.identity("index orders2")


def test_a_moved_table_or_a_renamed_route_is_the_same_identity() -> None:
    moved = replace(ROUTE, name="other", sink="other", source=Source("orders", name="main.orders", starting_version=3))
    assert moved.identity("index orders") == ROUTE.identity("index orders")


def test_the_identity_stays_from_release_to_release() -> None:
    """The driver compares it with what an older release recorded."""
    assert ROUTE.identity("index orders") == {
        "keys": ["id"],
        "filter": "amount > 0",
        "columns": ["id", "amount"],
        "rename": {"amount": "total"},
        "target": "index orders",
    }


@given(st.dictionaries(st.text(min_size=1), st.text(min_size=1), min_size=2))
def test_the_order_of_renames_does_not_matter(rename: dict[str, str]) -> None:
    reversed_ = dict(reversed(rename.items()))
    assert replace(ROUTE, rename=rename).identity("x") == replace(ROUTE, rename=reversed_).identity("x")
