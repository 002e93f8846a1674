"""The projection of a route is validated as far as possible without the table."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from cdf_replicator.route import Dimension
from cdf_replicator.settings import ConfigurationError, load
from cdf_replicator.settings.effective import effective
from cdf_replicator.settings.json_schema import json_schema
from cdf_replicator.settings.reference import reference
from tests.unit import example_sinks

if TYPE_CHECKING:
    from cdf_replicator.settings.parsing.errors import ConfigProblem

pytestmark = pytest.mark.usefixtures("example_sinks")

GOOD = example_sinks.GOOD | {"CDF_TABLES__ORDERS__PATH": "/orders"}
JOINED = {"ENRICH__CARRIERS__PATH": "/carriers", "ENRICH__CARRIERS__ON": "carrier", "ENRICH__CARRIERS__COLUMNS": "name"}


def route_with(changes: dict[str, str], name: str = "orders_store"):
    given = {f"CDF_ROUTES__{name.upper()}__{variable}": value for variable, value in changes.items()}
    return load(GOOD | given).routes[name]


def the_problem(changes: dict[str, str], name: str = "orders_store") -> ConfigProblem:
    with pytest.raises(ConfigurationError) as caught:
        route_with(changes, name)
    (problem,) = caught.value.problems
    return problem


def test_computed_columns_in_json_keep_case_and_commas() -> None:
    expressions = {"Total": "price * quantity", "label": "concat(name, ', ', 'a=b')"}
    assert route_with({"COMPUTED": json.dumps(expressions)}).computed == expressions
    problem = the_problem({"COMPUTED": "total=price * quantity"})
    assert (problem.variable, problem.expected) == ("CDF_ROUTES__ORDERS_STORE__COMPUTED", "a JSON object")


def test_columns_with_commas_blanks_and_dots_are_named_in_json() -> None:
    odd = ["a,b", "the id", "x.y", " lead", "[z]", "`t"]
    route = route_with({"COLUMNS": json.dumps(odd), "KEYS": json.dumps(odd[:2]), "RENAME": json.dumps({"a,b": "a=b"})})
    assert (route.columns, route.keys, route.rename) == (tuple(odd), ("a,b", "the id"), {"a,b": "a=b"})


def test_a_joined_table_is_named_column_by_column() -> None:
    route = route_with(JOINED | {"ENRICH__CARRIERS__ON": "year, carrier=code", "ENRICH__CARRIERS__COLUMNS": "name=of"})
    on = {"year": "year", "carrier": "code"}
    assert route.enrich == (Dimension("carriers", "/carriers", None, on, {"name": "of"}),)
    columns = {"ENRICH__CARRIERS__ON": '{"a=b": "c,d"}', "ENRICH__CARRIERS__COLUMNS": '{"e=f": "e=f"}'}
    (dimension,) = route_with(JOINED | columns).enrich
    assert (dimension.on, dimension.columns) == ({"a=b": "c,d"}, {"e=f": "e=f"})


def test_joined_table_can_be_set_in_a_file(tmp_path) -> None:
    file = tmp_path / "cdf.yaml"
    file.write_text(
        "routes: {orders_store: {computed: {total: a + b}, enrich: "
        "{carriers: {name: main.carriers, on: [carrier], columns: {name: carrier_name}}}}}"
    )
    settings = load(GOOD | {"CDF_CONFIG_FILE": str(file)})
    route = settings.routes["orders_store"]
    assert route.computed == {"total": "a + b"}
    on, columns = {"carrier": "carrier"}, {"name": "carrier_name"}
    assert route.enrich == (Dimension("carriers", None, "main.carriers", on, columns),)
    shown = {value.path: value.value for value in effective(settings)}
    assert shown["routes.orders_store.computed"] == "total=a + b"
    assert shown["routes.orders_store.enrich.carriers.name"] == "main.carriers"


def test_list_of_pairs_is_parsed(tmp_path) -> None:
    file = tmp_path / "cdf.yaml"
    file.write_text(
        "routes: {orders_store: {rename: [id=order_id], enrich: "
        "{carriers: {path: /carriers, on: [carrier=code, year], columns: [name=carrier_name, country]}}}}"
    )
    route = load(GOOD | {"CDF_CONFIG_FILE": str(file)} | {"CDF_ROUTES__ORDERS_STORE__COLUMNS": "id,carrier_name"})
    (joined,) = route.routes["orders_store"].enrich
    assert (joined.on, joined.columns) == (
        {"carrier": "code", "year": "year"},
        {"name": "carrier_name", "country": "country"},
    )
    assert route.routes["orders_store"].rename == {"id": "order_id"}
    same = route_with(JOINED | {"ENRICH__CARRIERS__COLUMNS": '["name=of", "country"]'})
    assert same.enrich[0].columns == {"name": "of", "country": "country"}


@pytest.mark.parametrize("items", ["[1]", "[a=]", "[a=b, a=c]", "[{a: b}]"])
def test_list_without_pairs_is_an_error(tmp_path, items: str) -> None:
    file = tmp_path / "cdf.yaml"
    file.write_text(f"routes: {{orders_store: {{rename: {items}}}}}")
    with pytest.raises(ConfigurationError, match="a=b,c=d or a JSON object"):
        load(GOOD | {"CDF_CONFIG_FILE": str(file)})


@pytest.mark.parametrize(
    ("changes", "variable", "words"),
    [
        ({"ENRICH__CARRIERS__ON": "a"}, "ENRICH__CARRIERS__COLUMNS", "a value"),
        (JOINED | {"ENRICH__CARRIERS__NAME": "x.y"}, "ENRICH__CARRIERS__PATH", "exactly one of PATH"),
        (JOINED | {"ENRICH__CARRIERS__TYPE": "x"}, "ENRICH__CARRIERS__TYPE", "known here: COLUMNS, NAME, ON, PATH"),
        (JOINED | {"ENRICH__CARRIERS__COLUMNS": "a=x,b=X"}, "ENRICH__CARRIERS__COLUMNS", "would share"),
        (JOINED | {"ENRICH__CARRIERS__COLUMNS": "_commit_version"}, "ENRICH__CARRIERS__COLUMNS", "the feed has"),
        (JOINED | {"ENRICH__CARRIERS__COLUMNS": "=x"}, "ENRICH__CARRIERS__COLUMNS", "a,b=c or a JSON object"),
        ({"ENRICH": "/carriers"}, "ENRICH", "its settings one by one"),
        ({"ENRICH__CARRIERS": "/carriers"}, "ENRICH__CARRIERS", "its settings one by one"),
        (JOINED | {"COLUMNS": "id"}, "COLUMNS", "delivered nowhere"),
        (JOINED | {"RENAME": "nome=x", "COLUMNS": "id,name"}, "RENAME", "columns of COLUMNS only"),
        (JOINED | {"COMPUTED": '{"NAME": "1"}'}, "COMPUTED", "would share"),
        ({"COMPUTED": '{"a": "1", "A": "2"}'}, "COMPUTED", "each column once"),
        ({"COMPUTED": '{"id": "1"}', "COLUMNS": "id"}, "COMPUTED", "would share"),
        ({"COMPUTED": '{"a": 1}'}, "COMPUTED", "a text"),
        ({"WATERMARK": "1 minute"}, "WATERMARK", "never late"),
        ({"WITH_WATERMARK_SECONDS": "10"}, "WITH_WATERMARK_SECONDS", "never late"),
        ({"DROP_DUPLICATES": "id"}, "DROP_DUPLICATES", "each change once"),
        ({"DROPDUPLICATES__COLUMNS": "id"}, "DROPDUPLICATES__COLUMNS", "each change once"),
        ({"WINDOW": "5 minutes"}, "WINDOW", "leave its window again"),
        ({"EVENT_TIME_COLUMN": "ts"}, "EVENT_TIME_COLUMN", "order is by commit version"),
        ({"OUTPUT_MODE": "complete"}, "OUTPUT_MODE", "follows from its type"),
        ({"IGNORE_DELETES": "true"}, "IGNORE_DELETES", "leaves deleted rows"),
    ],
)
def test_problems_visible_without_the_table_are_reported(changes: dict[str, str], variable: str, words: str) -> None:
    problem = the_problem(changes)
    assert problem.variable == f"CDF_ROUTES__ORDERS_STORE__{variable}"
    assert words in problem.expected


def test_table_cannot_drop_late_or_repeated_rows() -> None:
    for option in ("WATERMARK", "DROP_DUPLICATES", "SESSION_WINDOW"):
        with pytest.raises(ConfigurationError, match="not set: "):
            load(GOOD | {f"CDF_TABLES__ORDERS__{option}": "x"})


@pytest.mark.parametrize(
    "text", ["kind = 'date today'", "status = 'today'", "DATE 'epoch' < day", "d > DATE'2026-01-01'"]
)
def test_constant_time_is_accepted(text: str) -> None:
    assert route_with({"FILTER": text}).filter == text


def test_filter_that_may_use_a_joined_column_applies_after_the_join() -> None:
    assert route_with(JOINED | {"FILTER": "`Name` <> 'x'"}).filter_is_joined
    assert not route_with(JOINED | {"FILTER": "id > 1"}).filter_is_joined
    assert route_with(JOINED | {"FILTER": "id > 1 AND(NAME)='x'"}).filter_is_joined
    for text in ("status_name <> 'x'", "`name_2` <> 'x'", "names = 'x' OR surname = 'y'"):
        assert not route_with(JOINED | {"FILTER": text}).filter_is_joined, (
            "another column, which has the name as a part"
        )
    odd = JOINED | {"ENRICH__CARRIERS__COLUMNS": '{"name": "na`me"}'}
    assert route_with(odd | {"FILTER": "`na``me` = 'x'"}).filter_is_joined


def test_a_joined_column_may_be_chosen_and_renamed() -> None:
    route = route_with(JOINED | {"COLUMNS": "id,name", "RENAME": "name=carrier_name"})
    assert (route.columns, route.rename) == (("id", "name"), {"name": "carrier_name"})


def test_sink_of_every_change_cannot_join() -> None:
    """A replay would not know its rows again once the joined table has changed."""
    problem = the_problem(JOINED, "orders_log")
    assert (problem.variable, problem.given) == ("CDF_ROUTES__ORDERS_LOG__ENRICH", "carriers")
    assert "join in queries instead" in problem.expected


def test_reference_and_schema_have_projection_settings() -> None:
    entries = {entry.variable: entry for entry in reference()}
    assert entries["CDF_ROUTES__<ROUTE>__COMPUTED"].type == "JSON object"
    assert entries["CDF_ROUTES__<ROUTE>__ENRICH__<NAME>__ON"].type == "list: a,b=c or JSON"
    route = json_schema()["properties"]["routes"]["additionalProperties"]["properties"]
    assert "on" in route["enrich"]["additionalProperties"]["properties"]
