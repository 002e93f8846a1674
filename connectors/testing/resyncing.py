"""Test that a sink can delete the orphans of a resync: the suites of a ``Resyncable`` sink."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from connectors.change import Batch, RouteSpec, guard_of
from connectors.protocols import Resyncable
from connectors.result import EntryCount
from connectors.testing.chunk import change_frame, deletion, render_chunk, upsert
from connectors.testing.contract import Read, Write, assert_applied

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from connectors.sink import ArrowSink, FrameSink
    from connectors.testing.framing import WriteFrame
    from connectors.testing.upserting import Shown


class ResyncContract:
    """Contract suite of a ``Resyncable`` sink that takes chunks. A subclass also derives from ``SinkContract``."""

    def test_empty_target_holds_nothing(self, sink: ArrowSink, route: RouteSpec, schema: StructType) -> None:
        assert isinstance(sink, Resyncable)
        assert sink.count_entries(route, guard_of(2, 0, upsert=False)) == EntryCount()
        sink.prepare(schema, route)
        assert sink.count_entries(route, guard_of(2, 0, upsert=False)) == EntryCount()

    def test_sweep_removes_only_entries_below_the_guard(
        self, write: Write, sink: ArrowSink, shown: Shown, route: RouteSpec
    ) -> None:
        assert isinstance(sink, Resyncable)
        write(*(upsert(key, 8, "old", epoch=1) for key in "abcde"))
        write(upsert("a", 3, "new", epoch=2), upsert("b", 2, "new", epoch=2), deletion("c", 3, epoch=2))
        below = guard_of(2, 0, upsert=False)
        assert sink.count_entries(route, below) == EntryCount(
            total=4, orphans=len("de"), highest=guard_of(2, 3, upsert=True)
        )
        assert sink.delete_orphans(route, below) == len("de")
        assert [key for key in "abcde" if shown(key)] == ["a", "b"]
        assert sink.count_entries(route, below) == EntryCount(total=2, orphans=0, highest=guard_of(2, 3, upsert=True))
        assert sink.delete_orphans(route, below) == 0
        assert_applied(write(upsert("d", 4, "again", epoch=2)))

    def test_sweep_does_not_change_other_routes(
        self,
        write: Write,
        spark: SparkSession,
        sink: ArrowSink,
        route: RouteSpec,
        other_route: RouteSpec,
        schema: StructType,
        read: Read,
    ) -> None:
        assert isinstance(sink, Resyncable)
        write(upsert("a", 8, "ours"))
        other = type(sink)(sink.settings)
        other.prepare(schema, other_route)
        other.open(other_route)
        other.write(render_chunk(spark, other, other_route, schema, [upsert("a", 8, "theirs")]))
        assert sink.delete_orphans(route, guard_of(2, 0, upsert=False)) == 1
        assert read(route, "a") is None
        seen = read(other_route, "a")
        assert seen is not None
        assert seen["name"] == "theirs"
        other.close()

    def test_sweep_keeps_owner_and_epoch(self, write: Write, sink: ArrowSink, route: RouteSpec) -> None:
        assert isinstance(sink, Resyncable)
        before = sink.read_claim(route)
        write(upsert("a", 1, "one"))
        sink.delete_orphans(replace(route, epoch=2), guard_of(2, 0, upsert=False))
        assert sink.read_claim(route) == before


class FrameResyncContract:
    """Contract suite of a ``Resyncable`` sink that takes DataFrames. A subclass also derives from ``FrameContract``."""

    def test_empty_target_holds_nothing(self, sink: FrameSink, route: RouteSpec, schema: StructType) -> None:
        assert isinstance(sink, Resyncable)
        below = guard_of(2, 0, upsert=False)
        assert sink.count_entries(route, below) == EntryCount()
        sink.prepare(schema, route)
        assert sink.count_entries(route, below) == EntryCount()

    def test_sweep_removes_only_entries_below_the_guard(
        self,
        write: WriteFrame,
        spark: SparkSession,
        sink: FrameSink,
        route: RouteSpec,
        other_route: RouteSpec,
        schema: StructType,
        read: Read,
        shown: Shown,
    ) -> None:
        assert isinstance(sink, Resyncable)
        sink.prepare(schema, other_route)
        sink.write(change_frame(spark, schema, [upsert("a", 8, "theirs")]), Batch(other_route, 0, 1, table_id="t"))
        write(*(upsert(key, 8, "old", epoch=1) for key in "abcde"))
        result = write(upsert("a", 3, "new", epoch=2), upsert("b", 2, "new", epoch=2), deletion("c", 3, epoch=2))
        assert result.stale == 0, "a higher epoch wins over a higher version"
        below, claim = guard_of(2, 0, upsert=False), sink.read_claim(route)
        assert sink.count_entries(route, below) == EntryCount(
            total=4, orphans=len("de"), highest=guard_of(2, 3, upsert=True)
        )
        assert sink.delete_orphans(route, below) == len("de")
        assert sink.delete_orphans(route, below) == 0
        assert sink.read_claim(route) == claim
        assert sink.count_entries(route, below) == EntryCount(total=2, orphans=0, highest=guard_of(2, 3, upsert=True))
        assert [key for key in "abcde" if shown(key)] == ["a", "b"]
        assert write(upsert("a", 9000, "leftover writer"), upsert("d", 4, "again", epoch=2)).stale == 1
        assert (shown("a"), shown("d")) == ({"id": "a", "name": "new"}, {"id": "d", "name": "again"})
        seen = read(other_route, "a")
        assert seen is not None
        assert seen["name"] == "theirs"
