"""Test the promise of an upsert sink that takes DataFrames: as for a sink that takes chunks, with counts as results.

A write of such a sink takes seconds. Each of these tests therefore covers several cases at once, each with its own key.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest

from connectors.change import Batch, Change, Claim, RouteSpec
from connectors.result import FrameResult
from connectors.testing.chunk import SCHEMA, change_frame, deletion, key_of, upsert
from connectors.testing.contract import ODD_KEYS, Read

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from connectors.sink import FrameSink

WriteFrame = Callable[..., FrameResult]
Shown = Callable[[str], "dict[str, Any] | None"]


@pytest.mark.usefixtures("spark")
class FrameContract:
    """Contract suite of an upsert ``FrameSink``. A subclass provides ``sink``, ``route`` and ``read`` as for ``SinkContract``.

    It may override ``schema``, with further nullable columns after ``id`` and ``name``, and ``other_route``, a second route
    of the same sink with another target. It sets ``keeps_deleted`` to true if the sink keeps a delete as an entry.
    """

    keeps_deleted = False

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
    def write(self, spark: SparkSession, sink: FrameSink, route: RouteSpec, schema: StructType) -> WriteFrame:
        """Return a function that writes changes as the next or a given micro-batch, to a sink prepared for the route."""
        sink.prepare(schema, route)
        numbers = count(1)

        def write(*changes: Change, generation: int = 0, number: int | None = None) -> FrameResult:
            batch = Batch(route, generation, next(numbers) if number is None else number, table_id="t")
            return sink.write(change_frame(spark, schema, changes), batch)

        return write

    @pytest.fixture
    def shown(self, read: Read, route: RouteSpec) -> Shown:
        """Return a function that returns ``id`` and ``name`` as read, or None without an entry."""

        def show(identity: str) -> dict[str, Any] | None:
            seen = read(route, key_of(identity))
            return None if seen is None else {column: seen.get(column) for column in ("id", "name")}

        return show

    def test_target_is_unclaimed_until_prepared(
        self, sink: FrameSink, route: RouteSpec, other_route: RouteSpec, schema: StructType
    ) -> None:
        copy = pickle.loads(pickle.dumps(sink))  # noqa: S301 - bytes of this test
        assert (copy.settings, copy.capabilities) == (sink.settings, sink.capabilities)
        sink.check()
        assert sink.read_claim(route) is None
        sink.prepare(schema, route)
        assert sink.read_claim(route) == Claim(route.owner, route.epoch, route=route.name)
        assert sink.read_claim(other_route) is None
        assert sink.target(route) != sink.target(other_route)
        sink.prepare(schema, replace(route, owner="another owner", epoch=route.epoch + 1))
        assert sink.read_claim(route) == Claim("another owner", route.epoch + 1, route=route.name)
        sink.close()
        sink.close()

    def test_each_key_holds_its_change_with_the_highest_guard(self, write: WriteFrame, shown: Shown) -> None:
        assert write().applied == {}
        before = ["replaced", "newer", "kept", "rewritten", "first moved here", "deleted", "again", "moved back"]
        result = write(*(upsert(key, 5, "one") for key in before), deletion("missing", 5))
        assert result.applied["update_postimage"] == len(before)
        assert (result.stale, result.noop) == (0, 0 if self.keeps_deleted else 1)

        result = write(
            upsert("replaced", 6, None),
            upsert("newer", 4, "older"),
            deletion("kept", 4),
            upsert("rewritten", 5, "after the filter was widened"),
            deletion("first moved here", 5),
            deletion("deleted", 7),
            deletion("again", 7),
            deletion("moved back", 7),
            upsert("missing", 4, "late"),
            upsert("created", 4, "first"),
        )
        assert result.stale == len(["newer", "kept", "first moved here", "missing"])
        assert result.noop == 0
        assert {kind: n for kind, n in result.applied.items() if n} == {"update_postimage": 3, "delete": 3}

        result = write(upsert("deleted", 6, "late"), upsert("again", 8, "again"), upsert("moved back", 7, "moved back"))
        assert (result.stale, result.applied["update_postimage"]) == (1, 2)
        expected = {
            "replaced": None,
            "newer": "one",
            "kept": "one",
            "rewritten": "after the filter was widened",
            "first moved here": "one",
            "again": "again",
            "moved back": "moved back",
            "created": "first",
        }
        assert {key: shown(key) for key in [*expected, "deleted", "missing", "unknown"]} == {
            **{key: {"id": key, "name": name} for key, name in expected.items()},
            **dict.fromkeys(["deleted", "missing", "unknown"]),
        }

    def test_a_snapshot_fills_an_empty_target(self, write: WriteFrame, shown: Shown) -> None:
        assert sum(_load(write, 0).applied.values()) == 0
        result = _load(write, 1, upsert("a", 5, "one"), upsert("b", 5, None))
        assert (result.applied, result.stale, result.noop) == ({"snapshot": 2}, 0, 0)
        assert _load(write, 1, upsert("a", 5, "one"), upsert("b", 5, "never")).skipped
        assert (shown("a"), shown("b")) == ({"id": "a", "name": "one"}, {"id": "b", "name": None})
        write(deletion("a", 6), upsert("b", 7, "two"), generation=1)
        assert (shown("a"), shown("b")) == (None, {"id": "b", "name": "two"})

    def test_snapshot_does_not_overwrite_newer_rows(self, write: WriteFrame, shown: Shown) -> None:
        write(deletion("gone", 7))
        result = _load(write, 1, upsert("gone", 6, "older"), upsert("a", 6, "one"), upsert("b", 6, "one"))
        assert (result.applied["snapshot"], result.stale) == (2, 1)
        write(upsert("b", 9, "newer"), generation=1)
        result = _load(write, 2, upsert("gone", 8, "back"), upsert("a", 8, "two"), upsert("b", 8, "older"))
        assert (result.applied["snapshot"], result.stale) == (2, 1)
        assert {key: (shown(key) or {}).get("name") for key in ("gone", "a", "b")} == {
            "gone": "back",
            "a": "two",
            "b": "newer",
        }

    def test_batch_delivered_twice_is_written_once(self, write: WriteFrame, shown: Shown) -> None:
        assert not write(upsert("a", 5, "one"), generation=1, number=3).skipped
        for generation, number in ((1, 3), (1, 2), (0, 9)):
            assert write(upsert("a", 6, "never"), deletion("b", 6), generation=generation, number=number).skipped
        assert not write(upsert("b", 5, "two"), generation=2, number=1).skipped, "a replay begins a generation"
        assert (shown("a"), shown("b")) == ({"id": "a", "name": "one"}, {"id": "b", "name": "two"})

    def test_odd_keys_stay_distinct(self, write: WriteFrame, shown: Shown) -> None:
        write(*(upsert(key, 5, f"name of {key}") for key in ODD_KEYS))
        write(*(deletion(key, 6) for key in ODD_KEYS[::2]))
        assert [key for key in ODD_KEYS if shown(key)] == ODD_KEYS[1::2]
        assert shown(ODD_KEYS[1]) == {"id": ODD_KEYS[1], "name": f"name of {ODD_KEYS[1]}"}


def _load(write: WriteFrame, generation: int, *rows: Change) -> FrameResult:
    """Write rows as a bootstrap does: batch 0 of a generation, with the change type ``snapshot``."""
    return write(*(replace(row, change_type="snapshot") for row in rows), generation=generation, number=0)
