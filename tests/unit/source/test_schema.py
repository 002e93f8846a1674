"""Changes of columns are detected from two schemas, and a route accepts or refuses them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cdf_replicator.errors.exceptions import RouteHaltError
from cdf_replicator.route import Route, Source
from cdf_replicator.source.schema import Metadata, TableSchema, check_allowed, diff, with_removed, without_added
from connectors import RouteOptions
from connectors.type_widening import widens


def struct(**columns):
    """``name=type``, or ``name=(id, type)`` where the table has column mapping."""
    fields = []
    for name, given in columns.items():
        number, kind = given if isinstance(given, tuple) else (None, given)
        metadata = {"comment": "for people"} if number is None else {"delta.columnMapping.id": number}
        fields.append({"name": name, "type": kind, "nullable": True, "metadata": metadata})
    return {"type": "struct", "fields": fields}


def array(kind):
    return {"type": "array", "elementType": kind, "containsNull": True}


def mapping(key, value):
    return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}


def changes(old, new, *, by=((), ()), removed=()):
    found = diff(TableSchema(1, old, by[0], removed), TableSchema(2, new, by[1]))
    return sorted(f"{change.kind} {change.what}" for change in found)


def test_order_comments_nullability_and_the_case_of_names_make_no_difference():
    new = struct(B="string", a="long")
    new["fields"][0] |= {"nullable": False, "metadata": {}}
    assert changes(struct(a="long", b="string"), new) == []


def test_a_column_is_known_by_its_name_where_it_has_no_id():
    old, new = struct(a="long", b="integer", c="string"), struct(a="long", b="long", d="string")
    assert changes(old, new) == ["added column d", "dropped column c", "widened column b from integer to long"]


def test_a_column_is_known_by_its_id_where_it_has_one():
    old, new = struct(a=(1, "long"), b=(2, "string")), struct(key=(1, "long"), c=(3, "string"))
    assert changes(old, new) == ["added column c", "dropped column b", "renamed column a to key"]


def test_new_case_of_a_name_renames_a_column_that_has_an_id():
    old, new = struct(Name=(1, "long"), b=(2, "string")), struct(name=(1, "long"), b=(2, "string"))
    assert changes(old, new, by=(("Name",), ("name",))) == ["renamed column Name to name"]
    first, second = TableSchema(1, old), TableSchema(2, new)
    assert with_removed(first, second, diff(first, second)).removed == ()


def test_column_recreated_under_its_name_is_another_column():
    old, new = struct(a=(1, "long"), b=(2, "string")), struct(a=(1, "long"), b=(3, "string"))
    assert changes(old, new) == ["replaced column b by a new one of the same name"]


def test_column_added_under_a_name_that_was_removed_is_another_column():
    old = struct(a=(1, "long"), s=(2, struct(x=(3, "long"))))
    new = struct(a=(1, "long"), s=(2, struct(x=(3, "long"), y=(4, "long"))), Note=(5, "string"), notes=(6, "string"))
    assert changes(old, new, removed=("note", "s.y")) == [
        "added column notes",
        "replaced column Note by a new one of the same name",
        "replaced column s.y by a new one of the same name",
    ]
    assert changes(old, old, removed=("note", "s.y")) == []
    assert changes(struct(a=(1, "long")), struct(b=(1, "long"), A=(2, "long"))) == [
        "renamed column a to b",
        "replaced column A by a new one of the same name",
    ]


def test_new_name_of_a_renamed_column_may_hold_any_words():
    old, new = struct(a=(1, "long"), b=(2, "string")), {"a": (1, "long"), "sent from x to b": (2, "string")}
    renamed = ["renamed column b to sent from x to b"]
    assert changes(old, struct(**new), by=(("b",), ("sent from x to b",)), removed=("x",)) == renamed


def test_column_renamed_to_a_name_that_was_removed_replaces_that_column():
    old = struct(a=(1, "long"), b=(2, "long"))
    assert changes(old, struct(b=(1, "long"), a=(2, "long"))) == [
        "renamed column a to b",
        "renamed column b to a",
        "replaced column a by a new one of the same name",
        "replaced column b by a new one of the same name",
    ]
    replaced = ["renamed column a to b", "replaced column b by a new one of the same name"]
    assert changes(old, struct(b=(1, "long"))) == replaced
    assert changes(struct(a=(1, "long")), struct(b=(1, "long")), removed=("b",)) == replaced


def test_removed_names_are_kept_from_change_to_change():
    first = TableSchema(1, struct(A=(1, "long"), b=(2, struct(c=(3, "long"), d=(4, "long")))))
    second = TableSchema(2, struct(e=(1, "long"), b=(2, struct(d=(4, "long")))))
    known = with_removed(first, second, diff(first, second))
    assert known == replace(second, removed=("a", "b.c"))
    third = without_added(known, TableSchema(3, struct(e=(1, "long"), f=(5, "long"))))
    assert with_removed(known, third, diff(known, third)).removed == ("a", "b", "b.c", "b.d")
    kept = known.to_json()
    assert TableSchema.from_json(kept).removed == ("a", "b.c")
    del kept["removed"]
    assert TableSchema.from_json(kept).removed == (), "a file of an older service"


def test_field_added_to_a_struct_that_got_its_name_back_is_added():
    first, second = (TableSchema(1, struct(**{name: (1, struct(x=(2, "long")))})) for name in ("s", "t"))
    renamed = with_removed(first, second, diff(first, second))
    back = with_removed(renamed, first, diff(renamed, first))
    assert back.removed == ("s", "s.x", "t", "t.x")
    assert changes(first.columns, struct(s=(1, struct(x=(2, "long"), y=(3, "long")))), removed=back.removed) == [
        "added column s.y"
    ]


def test_changes_are_found_at_any_depth():
    old = struct(s=struct(x="integer"), l=array(struct(x="integer")), m=mapping("string", array("float")))
    new = struct(s=struct(x="string"), l=array(struct(x="integer", y="date")), m=mapping("string", array("double")))
    assert changes(old, new) == [
        "added column l.element.y",
        "retyped column s.x from integer to string",
        "widened column m.value.element from float to double",
    ]
    assert changes(struct(s=struct(x="long")), struct(s="string")) == ["retyped column s from struct to string"]


def test_partition_columns_are_compared_under_their_new_names():
    old = struct(a=(1, "long"), b=(2, "string"))
    assert changes(old, struct(a=(1, "long"), c=(2, "string")), by=(("b",), ("c",))) == ["renamed column b to c"]
    assert changes(old, old, by=(("b",), ())) == ["repartitioned partition columns from b to none"]
    assert changes(old, old, by=(None, ("b",))) == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("byte", "long"), ("integer", "double"), ("float", "double"), ("date", "timestamp_ntz"),
        ("integer", "decimal(10,0)"), ("long", "decimal(22,2)"), ("decimal(10,2)", "decimal(12,3)"),
    ],
)  # fmt: skip
def test_a_widening_is_what_delta_takes_for_one(old, new):
    assert widens(old, new)
    assert not widens(new, old)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("long", "double"), ("integer", "string"), ("long", "decimal(20,2)"), ("decimal(10,2)", "decimal(11,4)"),
        ("date", "timestamp"), ("integer", "float"), ("decimal(10,2)", "decimal(10,2)"),
    ],
)  # fmt: skip
def test_other_changes_of_type_are_none(old, new):
    assert not widens(old, new)


def route(policy="add", allow=None, keys=("id",)):
    source = Source("orders", path="/lake/orders", allow_schema_change=allow)
    return Route("orders_search", source, "search", keys, None, None, {}, RouteOptions(), schema_changes=policy)


def check(old, new, *, mapped=True, **given):
    check_allowed(route(**given), diff(TableSchema(1, old), TableSchema(7, new)), 7, mapped=mapped)


BEFORE = struct(id=(1, "long"), price=(2, "integer"))
ADDED = struct(id=(1, "long"), price=(2, "integer"), paid=(3, "boolean"))
RENAMED = struct(id=(1, "long"), cost=(2, "integer"))
DROPPED = struct(id=(1, "long"))
WIDENED = struct(id=(1, "long"), price=(2, "long"))


def test_added_and_widened_columns_are_followed_unless_the_route_is_to_fail():
    for new in (ADDED, WIDENED):
        check(BEFORE, new)
        check(BEFORE, new, policy="ignore")
        with pytest.raises(
            RouteHaltError, match="ALLOW_SCHEMA_CHANGE=7, or set CDF_ROUTES__ORDERS_SEARCH__SCHEMA_CHANGES"
        ):
            check(BEFORE, new, policy="fail")
        check(BEFORE, new, policy="fail", allow=7)


@pytest.mark.parametrize("new", [RENAMED, DROPPED])
@pytest.mark.parametrize("policy", ["add", "ignore", "fail"])
def test_a_renamed_or_dropped_column_needs_the_approval_of_its_version(new, policy):
    with pytest.raises(RouteHaltError, match="set CDF_TABLES__ORDERS__ALLOW_SCHEMA_CHANGE=7"):
        check(BEFORE, new, policy=policy, allow=6)
    check(BEFORE, new, policy=policy, allow=7)
    check(BEFORE, new, policy=policy, allow="always")


@pytest.mark.parametrize(
    ("old", "new", "mapped"),
    [
        (struct(id="long", price="integer"), struct(id="long"), False),
        (BEFORE, struct(id=(1, "long"), price=(2, "string")), True),
        (BEFORE, struct(id=(1, "long"), price=(9, "integer")), True),
        (struct(id=(1, "integer")), struct(id=(1, "double")), True),
    ],
)
def test_change_that_no_approval_corrects_names_resync(old, new, mapped):
    with pytest.raises(RouteHaltError) as caught:
        check(old, new, mapped=mapped, allow="always")
    assert caught.value.decision.remedy == "Run: cdf-replicator resync {route}"
    assert "Table orders (/lake/orders) changed at version 7: " in caught.value.decision.message


def test_a_whole_number_key_may_widen_since_its_text_stays():
    check(struct(id=(1, "integer")), struct(id=(1, "long")))


def test_added_columns_are_left_out_at_any_depth_by_present_names():
    old = struct(a=(1, "long"), s=(2, struct(x=(3, "long"))), l=(4, array(struct(x=(5, "long")))))
    new = struct(
        b=(1, "long"), n=(9, "long"), s=(2, struct(x=(3, "long"), y=(8, "long"))), l=(4, array(struct(z=(5, "long"))))
    )
    kept = without_added(TableSchema(1, old), TableSchema(2, new))
    want = struct(b=(1, "long"), s=(2, struct(x=(3, "long"))), l=(4, array(struct(z=(5, "long")))))
    assert kept.columns == want


def test_a_schema_is_kept_without_what_makes_no_difference():
    kept = TableSchema(3, struct(a="long", s=struct(b=(2, array("string")))), ("a",))
    text = kept.to_json()
    assert "comment" not in str(text)
    assert diff(TableSchema.from_json(text), kept) == []
    assert TableSchema.from_json(text).version == 3


def test_a_metadata_action_is_read_as_delta_writes_it():
    line = (
        '{"metaData":{"id":"x","format":{"provider":"parquet","options":{}},"schemaString":"{\\"type\\":\\"struct\\",'
        '\\"fields\\":[{\\"name\\":\\"id\\",\\"type\\":\\"long\\",\\"nullable\\":true,\\"metadata\\":{}}]}",'
        '"partitionColumns":["id"],"configuration":{"delta.enableChangeDataFeed":"true"},"createdTime":1}}'
    )
    found = Metadata.parse(4, line)
    assert (found.table_id, found.change_feed) == ("x", True)
    assert (found.schema.version, found.schema.partitioned_by) == (4, ("id",))
    assert changes(found.schema.columns, struct(id="long")) == []
