"""The columns that a comparison leaves out, since they depend on joined tables."""

from __future__ import annotations

from pyspark.sql.types import StructType

from cdf_replicator.route import Dimension, Route, Source
from cdf_replicator.verification.expected import unverified
from connectors import RouteOptions


def test_computed_column_of_a_joined_column_is_unverified_in_any_case() -> None:
    carriers = Dimension(
        "carriers", "/lake/carriers", None, {"carrier": "code"}, {"name": "na`me", "country": "country"}
    )
    route = Route(
        name="orders_search",
        source=Source("orders", path="/lake/orders"),
        sink="search",
        keys=("id",),
        filter=None,
        columns=None,
        rename={"country": "land"},
        options=RouteOptions(),
        computed={"label": "upper(`NA``Me`)", "from": "lower(Country)", "twice": "id * 2"},
        enrich=(carriers,),
    )
    row = StructType()
    for name in ("id", "na`me", "land", "label", "from", "twice"):
        row.add(name, "string")
    assert unverified(route, row) == ("na`me", "land", "label", "from")
