import pytest
from pyspark.sql import types as T  # noqa: N812 - as in the code under test

from connectors import PermanentError
from connectors.elasticsearch.dialect import ELASTICSEARCH
from connectors.elasticsearch.mapping import compare, leaves, properties_of


def schema(**columns):
    return T.StructType([T.StructField(name, kind) for name, kind in columns.items()])


def conflicts(kind, mapped):
    return compare(leaves(schema(c=kind), "r", ELASTICSEARCH, {}), {"properties": {"c": mapped}}).conflicts


@pytest.mark.parametrize(
    ("kind", "mapped"),
    [
        (T.StringType(), "keyword"),
        (T.StringType(), "ip"),
        (T.VarcharType(10), "text"),
        (T.ByteType(), "byte"),
        (T.IntegerType(), "integer"),
        (T.IntegerType(), "long"),
        (T.LongType(), "date"),
        (T.LongType(), "keyword"),
        (T.DoubleType(), "float"),
        (T.DecimalType(10, 0), "long"),
        (T.DecimalType(20, 2), "double"),
        (T.DateType(), "date"),
        (T.TimestampType(), "date_nanos"),
        (T.MapType(T.StringType(), T.LongType()), "object"),
        (T.ArrayType(T.ArrayType(T.LongType())), "long"),
        (T.VariantType(), "keyword"),
        (schema(x=T.LongType()), "flattened"),
    ],
)
def test_a_mapping_that_holds_the_type_is_accepted(kind, mapped):
    assert conflicts(kind, {"type": mapped}) == []


@pytest.mark.parametrize(
    ("kind", "mapped"),
    [
        (T.StringType(), "long"),
        (T.StringType(), "boolean"),
        (T.LongType(), "integer"),
        (T.DoubleType(), "long"),
        (T.DecimalType(10, 2), "long"),
        (T.DecimalType(38, 0), "long"),
        (T.TimestampType(), "long"),
        (T.BooleanType(), "long"),
        (T.BinaryType(), "long"),
        (T.MapType(T.StringType(), T.LongType()), "keyword"),
        (T.ArrayType(T.StringType()), "long"),
        (T.VariantType(), "alias"),
        (T.StringType(), "alias"),
        (T.StringType(), "object"),
        (schema(x=T.LongType()), "keyword"),
    ],
)
def test_a_mapping_that_does_not_hold_the_type_is_a_conflict(kind, mapped):
    (conflict,) = conflicts(kind, {"type": mapped})
    assert f"'c' is mapped as {mapped}, the route sends" in conflict


def test_disabled_object_accepts_any_type():
    disabled = {"type": "object", "enabled": False}
    assert conflicts(T.StringType(), disabled) == []
    assert conflicts(schema(x=T.LongType()), disabled) == []


def test_missing_field_has_the_dynamic_rule_of_its_parent():
    mappings = {"dynamic": "strict", "properties": {"open": {"dynamic": "true", "properties": {}}}}
    nested = schema(x=T.LongType())
    missing = compare(
        leaves(schema(top=T.LongType(), open=nested, new=nested), "r", ELASTICSEARCH, {}), mappings
    ).missing
    assert [(leaf.path, dynamic) for leaf, dynamic in missing] == [
        ("top", "strict"),
        ("open.x", "true"),
        ("new.x", "strict"),
    ]


def test_names_with_dots_are_found_where_objects_are_flat():
    found = leaves(schema(home=schema(zip=T.LongType(), city=T.StringType())), "r", ELASTICSEARCH, {})
    result = compare(
        found, {"subobjects": False, "properties": {"home.zip": {"type": "text"}, "home.city": {"type": "ip"}}}
    )
    assert (result.missing, result.conflicts) == ([], [])


def test_a_dot_in_a_name_is_a_path():
    found = leaves(
        T.StructType([T.StructField("a.b", T.LongType()), T.StructField("a.c", T.DateType())]), "r", ELASTICSEARCH, {}
    )
    expected = {"a": {"properties": {"b": {"type": "long"}, "c": {"type": "date", "ignore_malformed": True}}}}
    assert properties_of(found, {}) == expected


def test_fields_are_added_to_objects_of_the_type_they_have():
    found = leaves(schema(home=schema(zip=T.LongType())), "r", ELASTICSEARCH, {})
    expected = {"home": {"type": "nested", "properties": {"zip": {"type": "long"}}}}
    assert properties_of(found, {"properties": {"home": {"type": "nested"}}}) == expected


def test_every_unsupported_column_is_named_at_once():
    with pytest.raises(PermanentError) as caught:
        leaves(
            schema(_id=T.LongType(), fine=T.LongType(), home=T.StructType().add("", T.LongType())),
            "orders_search",
            ELASTICSEARCH,
            {},
        )
    assert "'_id': the name is reserved" in caught.value.reason
    assert "'home.'" in caught.value.reason
    assert "fine" not in caught.value.reason
    assert caught.value.hint.endswith("CDF_ROUTES__ORDERS_SEARCH__COLUMNS: _id, home.")


def test_metadata_name_inside_a_struct_is_accepted():
    assert [leaf.path for leaf in leaves(schema(home=schema(_id=T.LongType())), "r", ELASTICSEARCH, {})] == ["home._id"]
