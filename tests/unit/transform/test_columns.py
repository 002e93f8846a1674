"""The columns that a route names and its table lacks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cdf_replicator.errors.exceptions import RouteHaltError
from cdf_replicator.route import Dimension, Route, Source
from cdf_replicator.transform.columns import check_names
from connectors import RouteOptions

CARRIERS = Dimension("carriers", "/carriers", None, {"carrier": "code"}, {"name": "name"})
ROUTE = Route(
    "orders_search", Source("orders", path="/o"), "search", ("id",), None, None, {}, RouteOptions(), enrich=(CARRIERS,)
)


@pytest.mark.parametrize(
    ("change", "what", "settings"),
    [
        (
            {"keys": ("id", "name")},
            "column name; it has id, carrier. Keys are columns of the table, never joined.",
            "KEYS",
        ),
        ({"keys": ("nope",)}, "column nope; it has id, carrier.", "KEYS"),
        ({"columns": ("id", "nope")}, "column nope; it has id, carrier, name.", "COLUMNS or RENAME"),
    ],
)
def test_message_lists_the_columns_that_a_setting_may_name(change: dict, what: str, settings: str) -> None:
    with pytest.raises(RouteHaltError) as caught:
        check_names(["id", "carrier"], replace(ROUTE, **change))
    decision = caught.value.decision
    assert decision.message == f"Table orders (/o) has no {what}"
    assert decision.remedy.startswith(f"Correct {settings} of route orders_search, then restart")
