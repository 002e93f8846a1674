"""Test the promise of an append sink: every change arrives in the given order, deletes included."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from connectors.change import RouteSpec
from connectors.testing.chunk import deletion, key_of, render_chunk, upsert
from connectors.testing.contract import ODD_KEYS, ArrowContract, Write, assert_applied

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from connectors.sink import ArrowSink

ReadAll = Callable[[RouteSpec], "list[dict[str, Any]]"]


class AppendContract(ArrowContract):
    """Contract suite of an append sink that takes chunks. A subclass provides the fixtures ``sink``, ``route`` and ``read_all``.

    ``read_all`` returns a function of (route) that returns every change of the destination in the order of arrival, each
    with ``key``, ``guard``, ``change_type`` and the row's ``name``.
    """

    def test_every_change_arrives_in_order(self, write: Write, read_all: ReadAll, route: RouteSpec) -> None:
        changes = [upsert("a", 1, "one"), upsert("a", 2, "two"), deletion("a", 3), upsert("b", 3, "three")]
        assert_applied(write(*changes[:2]))
        assert_applied(write(*changes[2:]))
        expected = [(c.key, c.guard, c.change_type, c.row["name"]) for c in changes]
        assert [(r["key"], r["guard"], r["change_type"], r["name"]) for r in read_all(route)] == expected

    def test_older_version_is_appended(self, write: Write, read_all: ReadAll, route: RouteSpec) -> None:
        write(upsert("a", 5, "new"))
        assert_applied(write(upsert("a", 4, "old")))
        assert [row["name"] for row in read_all(route)] == ["new", "old"]

    def test_odd_keys_are_kept_unchanged(self, write: Write, read_all: ReadAll, route: RouteSpec) -> None:
        assert_applied(write(*(upsert(key, 5, key) for key in ODD_KEYS)))
        rows = [(row["key"], row["name"]) for row in read_all(route)]
        assert rows == [(key_of(key), key) for key in ODD_KEYS]

    def test_slice_of_a_chunk_is_written_like_a_chunk(
        self,
        write: Write,
        spark: SparkSession,
        sink: ArrowSink,
        route: RouteSpec,
        schema: StructType,
        read_all: ReadAll,
    ) -> None:
        write()
        chunk = render_chunk(spark, sink, route, schema, [upsert(key, 5, f"{key}é") for key in "abcdef"])
        assert_applied(sink.write(chunk.slice(2, 3)))
        assert [row["name"] for row in read_all(route)] == ["cé", "dé", "eé"]
