"""Test that the entries of a target are read back as they were written: the suite of a ``Verifiable`` sink."""

from __future__ import annotations

import json
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any, Final

import pytest
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from connectors.change import GUARD, ROW, Batch, RouteSpec, guard_of
from connectors.errors import SinkError
from connectors.protocols import Verifiable
from connectors.rendering import content_of, in_json_type, json_type
from connectors.sink import ArrowSink
from connectors.testing.chunk import change_frame, deletion, frame_of_rows, key_of, render_frame, upsert
from connectors.testing.contract import Read, assert_applied
from connectors.view import IDENTITY

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

    from connectors.sink import FrameSink, Sink
    from connectors.view import View

Entries = dict[str, "tuple[int | None, dict[str, Any] | None]"]
"""The guard and the row of each entry, by its identity. A null of the row is absent."""

TYPES: Final = {
    "boolean": ("true", "false"),
    "tinyint": ("-128", "127"),
    "bigint": ("-9223372036854775807", "9223372036854775807"),
    "float": ("'NaN'", "0.1"),
    "double": ("'-Infinity'", "4.9E-324"),
    "decimal(10,2)": ("12345678.90", "0"),
    "decimal(38,10)": ("'1234567890123456789012345678.0123456789'", "'-0.0000000001'"),
    "string": ("''", "'Ünïcödé \"\\\\\\n'"),
    "binary": ("X''", "X'00FF'"),
    "date": ("'0001-01-01'", "'9999-12-31'"),
    "timestamp": ("'0001-01-01 00:00:00.000001'", "'9999-12-31 23:59:59.999999'"),
    "timestamp_ntz": ("'0001-01-01 00:00:00.000001'", "'9999-12-31 23:59:59.999999'"),
    "array<double>": ("array()", "array(0.5D, double('NaN'), NULL)"),
    "array<struct<a:int,b:string>>": ("array()", "array(named_struct('a', 1, 'b', NULL), NULL)"),
    "map<string,int>": ("map()", "map('a.b', 1, 'none', NULL)"),
    "map<int,string>": ("map(-1, 'x')", "map(1, NULL)"),
    "map<date,decimal(38,10)>": ("map()", "map(DATE'2024-02-29', 0.5BD)"),
    "struct<a:int,b:struct<c:decimal(38,10)>>": (
        "named_struct('a', NULL, 'b', NULL)",
        "named_struct('a', 1, 'b', named_struct('c', 0.5BD))",
    ),
}
"""Two SQL literals of each type. A third row has nulls alone."""


class VerifyContract:
    """Contract suite of a ``Verifiable`` sink. A subclass also derives from ``SinkContract`` or ``FrameContract``.

    A subclass provides ``write_foreign``: a function of (route, key text) that writes an entry of this key without the
    sink, as another writer would. It may override ``typed``, the rows of all types, if the sink refuses some of them.
    """

    @pytest.fixture
    def typed(self, spark: SparkSession) -> DataFrame:
        """Return rows with the columns ``id`` and ``name`` and a column of each type."""
        columns = [f"`{kind}`" for kind in TYPES]
        values = [[f"CAST({literals[at]} AS {kind})" for kind, literals in TYPES.items()] for at in range(2)]
        values.append([f"CAST(NULL AS {kind})" for kind in TYPES])
        rows = (
            f"SELECT '{number}' AS id, 'name' AS name, "
            + ", ".join(f"{value} AS {column}" for value, column in zip(row, columns, strict=True))
            for number, row in enumerate(values)
        )
        return spark.sql(" UNION ALL ".join(rows))

    @pytest.fixture
    def entries(self, spark: SparkSession, sink: Sink, route: RouteSpec, schema: StructType) -> Callable[[], Entries]:
        """Return a function that reads every entry of the target through a new view."""
        return lambda: read_entries(spark, sink, route, schema)

    def test_view_has_every_written_row_and_no_deleted_key(
        self,
        write: Callable[..., Any],
        spark: SparkSession,
        sink: Sink,
        route: RouteSpec,
        schema: StructType,
        entries: Callable[[], Entries],
        odd_keys: list[str],
    ) -> None:
        rows = [upsert(key, 5, f"name of {key}") for key in odd_keys]
        write(*rows, upsert("null", 5), deletion("missing", 5), upsert("again", 5, "one"))
        write(*(deletion(key, 6) for key in odd_keys[::2]), deletion("again", 6))
        write(upsert("again", 7, "two"))
        expected = change_frame(spark, schema, [*rows[1::2], upsert("null", 5), upsert("again", 7, "two")])
        assert entries() == written(expected, sink, route)

    def test_view_has_rows_of_every_type_as_written(
        self, spark: SparkSession, sink: ArrowSink | FrameSink, route: RouteSpec, typed: DataFrame
    ) -> None:
        frame = frame_of_rows(typed)
        with closing(sink):
            sink.prepare(typed.schema, route)
            if isinstance(sink, ArrowSink):
                sink.open(route)
                assert_applied(sink.write(render_frame(frame, sink, route, typed.schema)))
            else:
                sink.write(frame, Batch(route, 0, 1, table_id="t"))
            assert read_entries(spark, sink, route, typed.schema) == written(frame, sink, route)

    def test_entry_of_another_writer_has_no_guard_of_the_service(
        self,
        write: Callable[..., Any],
        spark: SparkSession,
        sink: Sink,
        route: RouteSpec,
        schema: StructType,
        entries: Callable[[], Entries],
        write_foreign: Callable[[RouteSpec, str], None],
    ) -> None:
        write(upsert("a", 5, "ours"))
        write_foreign(route, key_of("theirs"))
        ours, theirs = (
            written(change_frame(spark, schema, [upsert(key, 5, "ours")]), sink, route) for key in ("a", "theirs")
        )
        held = entries()
        assert held.keys() == ours.keys() | theirs.keys()
        assert held.items() >= ours.items()
        for identity in theirs:
            guard = held[identity][0]
            assert guard is None or guard < guard_of(1, 0, upsert=False), "a target may number its entries itself"

    def test_view_stays_the_same_if_it_is_consistent_and_changes_nothing(
        self,
        write: Callable[..., Any],
        spark: SparkSession,
        sink: Sink,
        route: RouteSpec,
        schema: StructType,
        entries: Callable[[], Entries],
        read: Read,
    ) -> None:
        write(*(upsert(key, 5, "before") for key in "abc"))
        claim, seen, before = sink.read_claim(route), read(route, "a"), entries()
        assert (sink.read_claim(route), read(route, "a"), entries()) == (claim, seen, before)
        assert isinstance(sink, Verifiable)
        with sink.view(route) as view:
            write(upsert("a", 6, "after"), deletion("b", 6), upsert("d", 6, "after"))
            held = _shown(view, spark, schema)
        after = entries()
        assert held == (before if view.consistent else after)
        assert after != before

    def test_view_of_an_absent_target_creates_nothing(
        self, sink: Sink, route: RouteSpec, entries: Callable[[], Entries]
    ) -> None:
        with closing(sink), suppress(SinkError):
            assert entries() == {}
        assert sink.read_claim(route) is None


def read_entries(spark: SparkSession, sink: Sink, route: RouteSpec, schema: StructType) -> Entries:
    """Read the entries of a target; ``schema`` is the type of the rows that were written."""
    assert isinstance(sink, Verifiable), f"{type(sink).__name__} does not derive from Verifiable"
    with sink.view(route) as view:
        return _shown(view, spark, schema)


def written(frame: DataFrame, sink: Sink, route: RouteSpec) -> Entries:
    """Return the entries that a target must have after the upserts of a change frame."""
    assert isinstance(sink, Verifiable)
    schema = frame.schema[ROW].dataType
    assert isinstance(schema, StructType)
    row = in_json_type(F.col(ROW), schema).alias(ROW)
    return _collected(frame.select(sink.identity(route).alias(IDENTITY), GUARD, row), schema)


def _shown(view: View, spark: SparkSession, schema: StructType) -> Entries:
    return _collected(view.entries(spark, schema), schema)


def _collected(entries: DataFrame, schema: StructType) -> Entries:
    """Collect entries, whose rows must have the JSON type of ``schema``."""
    row = json_type(schema)
    assert isinstance(row, StructType)
    assert entries.schema[ROW].dataType.simpleString() == row.simpleString()
    rows = entries.select(IDENTITY, GUARD, content_of(F.col(ROW), row)).collect()
    return {identity: (guard, None if text is None else _exact(text)) for identity, guard, text in rows}


def _exact(text: str) -> dict[str, Any]:
    """Return the value of a JSON object, with each number as its text: ``verify`` compares digests of texts."""
    value: dict[str, Any] = json.loads(text, parse_int=str, parse_float=str)
    return value
