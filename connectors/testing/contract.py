"""Test the parts of the contract that every sink with chunks keeps, and the optional parts: bad rows and fences."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from connectors.change import Change, Claim, RouteSpec, Watermark
from connectors.errors import PermanentError
from connectors.protocols import Watermarked
from connectors.result import WriteResult
from connectors.testing.chunk import SCHEMA, deletion, render_chunk, upsert

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from connectors.sink import ArrowSink

Read = Callable[[RouteSpec, str], "dict[str, Any] | None"]
Write = Callable[..., WriteResult]

ODD_KEYS = [
    "",
    " ",
    "a b",
    "a:b",
    "a%3Ab",
    "100%",
    "{a}",
    "}{",
    "a{b",
    "it's",
    'say "hi"',
    "back\\slash",
    "two\nlines",
    "carriage\r\n$3\r\n",
    "tab\there",
    "nul\0byte",
    "../up",
    "a/b?c#d&e=f",
    "*[a-z]?",
    "Ünïcödé",
    "日本語",
    "👩‍🚀",
    "long" * 200,
]


class ArrowContract:
    """Fixtures and tests of both modes. Derive a suite from ``SinkContract`` or ``AppendContract`` instead.

    A subclass provides ``sink``, ``route`` and the fixtures that those classes name. It may override ``schema``, with
    further nullable columns after ``id`` and ``name``, ``other_route``, a second route of the same sink with another
    target, and ``odd_keys``, if the target can't hold one of them.
    """

    @pytest.fixture
    def schema(self) -> StructType:
        return SCHEMA

    @pytest.fixture
    def odd_keys(self) -> list[str]:
        return ODD_KEYS

    @pytest.fixture
    def other_route(self, route: RouteSpec) -> RouteSpec:
        return replace(route, name="other", table="other")

    @pytest.fixture
    def write(self, spark: SparkSession, sink: ArrowSink, route: RouteSpec, schema: StructType) -> Iterator[Write]:
        """Return a function that writes changes as one chunk, to a sink prepared and opened for ``route``."""
        sink.prepare(schema, route)
        sink.open(route)
        yield lambda *changes: sink.write(render_chunk(spark, sink, route, schema, changes))
        sink.close()

    def test_sink_pickles_before_it_is_opened(self, sink: ArrowSink) -> None:
        copy = pickle.loads(pickle.dumps(sink))  # noqa: S301 - bytes of this test
        assert (copy.settings, copy.capabilities) == (sink.settings, sink.capabilities)

    def test_sink_can_be_closed_twice_and_before_it_is_opened(
        self, sink: ArrowSink, route: RouteSpec, schema: StructType
    ) -> None:
        sink.close()
        sink.prepare(schema, route)
        sink.open(route)
        sink.open(route)
        sink.close()
        sink.close()

    def test_sink_can_be_reopened_after_close(self, write: Write, sink: ArrowSink, route: RouteSpec) -> None:
        sink.close()
        sink.open(route)
        assert_applied(write(upsert("a", 1, "one")))

    def test_check_passes_and_changes_nothing(self, sink: ArrowSink, route: RouteSpec) -> None:
        sink.check()
        assert sink.read_claim(route) is None

    def test_target_is_unclaimed_until_prepared(
        self, sink: ArrowSink, route: RouteSpec, other_route: RouteSpec, schema: StructType
    ) -> None:
        assert sink.read_claim(route) is None
        sink.prepare(schema, route)
        assert sink.read_claim(route) == Claim(route.owner, route.epoch, route=route.name)
        assert sink.read_claim(other_route) is None

    def test_second_prepare_renews_the_claim(self, sink: ArrowSink, route: RouteSpec, schema: StructType) -> None:
        sink.prepare(schema, route)
        sink.prepare(schema, replace(route, owner="another owner", epoch=route.epoch + 1))
        assert sink.read_claim(route) == Claim("another owner", route.epoch + 1, route=route.name)

    def test_routes_of_different_tables_have_different_targets(
        self, sink: ArrowSink, route: RouteSpec, other_route: RouteSpec
    ) -> None:
        assert sink.target(route) != sink.target(other_route)
        assert sink.target(route) == sink.target(replace(route, epoch=route.epoch + 1, owner="another owner"))

    def test_empty_chunk_is_accepted(self, write: Write) -> None:
        assert_applied(write())


class BadRowContract:
    """Contract suite of a sink that can refuse a row.

    A subclass provides ``bad_change``, which the sink rejects. Its key is neither ``good 1`` nor ``good 2``.
    """

    def test_bad_row_is_rejected_and_other_rows_are_written(
        self, sink: ArrowSink, write: Write, bad_change: Change, read: Read, route: RouteSpec
    ) -> None:
        result = write(upsert("good 1", 7, "x"), bad_change, upsert("good 2", 7, "y"))
        assert [rejected.position for rejected in result.rejected] == [1]
        assert result.rejected[0].code in sink.capabilities.rejection_codes
        assert result.rejected[0].reason
        assert not [*result.stale, *result.noop, *result.retry]
        assert read(route, "good 1") is not None
        assert read(route, "good 2") is not None


class FenceContract:
    """Contract suite of an upsert sink that is ``Watermarked`` and has the capability ``fencing``. A subclass also derives from ``SinkContract``."""

    def test_writer_of_an_older_lease_writes_nothing(
        self, spark: SparkSession, sink: ArrowSink, route: RouteSpec, schema: StructType, read: Read
    ) -> None:
        assert sink.capabilities.fencing
        older, newer = replace(route, fence=1), replace(route, fence=2)
        leftover = type(sink)(sink.settings)
        assert isinstance(leftover, Watermarked)
        leftover.prepare(schema, older)
        leftover.open(older)
        assert_applied(leftover.write(render_chunk(spark, leftover, older, schema, [upsert("a", 1, "one")])))
        sink.prepare(schema, newer)
        sink.open(newer)
        for change in (upsert("a", 9, "late"), upsert("b", 9, "late"), deletion("a", 9)):
            with pytest.raises(PermanentError):
                leftover.write(render_chunk(spark, leftover, older, schema, [change]))
        with pytest.raises(PermanentError):
            leftover.prepare(schema, older)
        with pytest.raises(PermanentError):
            leftover.save_watermark(older, Watermark(0, 9, 9))
        assert read(route, "a") is not None
        assert read(route, "b") is None
        assert_applied(sink.write(render_chunk(spark, sink, newer, schema, [deletion("a", 3), upsert("c", 3, "x")])))
        leftover.close()

    def test_watermark_is_kept_with_the_data_until_the_epoch_ends(
        self, sink: ArrowSink, route: RouteSpec, schema: StructType
    ) -> None:
        assert isinstance(sink, Watermarked)
        sink.prepare(schema, route)
        sink.save_watermark(route, Watermark(2, 3, 7))
        sink.prepare(schema, replace(route, fence=1))
        assert sink.read_claim(route) == Claim(
            route.owner,
            route.epoch,
            watermark=Watermark(2, 3, 7),
            txn_version=Watermark(2, 3, 7).txn_version,
            route=route.name,
        )
        following = replace(route, epoch=route.epoch + 1, fence=1)
        sink.prepare(schema, following)
        assert sink.read_claim(following) == Claim(route.owner, route.epoch + 1, route=route.name)


def assert_applied(result: WriteResult) -> None:
    """Assert that the sink applied every change of the chunk."""
    assert not result.stale
    assert not result.noop
    assert not result.rejected
    assert not result.retry
