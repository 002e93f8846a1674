"""Test the promise of an upsert sink: each key shows its change of the highest guard in any order of arrival."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from connectors.testing.chunk import deletion, key_of, render_chunk, upsert
from connectors.testing.contract import ArrowContract, Read, Write, assert_applied

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from connectors.change import RouteSpec
    from connectors.sink import ArrowSink

Shown = Callable[[str], "dict[str, Any] | None"]

WRITERS = 3
ROUNDS = 8


class SinkContract(ArrowContract):
    """Contract suite of an upsert sink. A subclass provides the fixtures ``sink``, ``route`` and ``read``.

    ``sink`` returns a new sink with a target of its own. ``route`` returns a ``RouteSpec`` with ``keys=("id",)``.
    ``read`` returns a function of (route, key text) that returns the entry as a reader of the destination sees it, with
    text under ``id`` and ``name``, or None. It must see every ``write`` that has returned.
    """

    @pytest.fixture
    def shown(self, read: Read, route: RouteSpec) -> Shown:
        """Return a function that returns ``id`` and ``name`` as read, or None without an entry. A null may be absent."""

        def show(identity: str) -> dict[str, Any] | None:
            seen = read(route, key_of(identity))
            return None if seen is None else {column: seen.get(column) for column in ("id", "name")}

        return show

    def test_row_is_read_as_written(self, write: Write, shown: Shown) -> None:
        assert_applied(write(upsert("a", 1, "one"), upsert("b", 1, "zwei ✓ \"\\\n\r\n'")))
        assert shown("a") == {"id": "a", "name": "one"}
        assert shown("b") == {"id": "b", "name": "zwei ✓ \"\\\n\r\n'"}
        assert shown("c") is None

    def test_chunk_delivered_twice_leaves_the_same_entries(self, write: Write, shown: Shown) -> None:
        write(upsert("b", 1, "old"))
        for _ in range(2):
            result = write(upsert("a", 5, "one"), deletion("b", 5))
            assert not result.rejected
            assert not result.retry
            assert shown("a") == {"id": "a", "name": "one"}
            assert shown("b") is None

    def test_newer_version_replaces_the_whole_row(self, write: Write, shown: Shown) -> None:
        write(upsert("a", 1, "one"))
        assert_applied(write(upsert("a", 2, None)))
        assert shown("a") == {"id": "a", "name": None}

    def test_older_version_does_not_overwrite_and_is_reported_stale(self, write: Write, shown: Shown) -> None:
        write(upsert("a", 5, "new"), upsert("b", 5, "new"))
        result = write(upsert("c", 4, "first"), upsert("a", 4, "old"), deletion("b", 4))
        assert list(result.stale) == [1, 2]
        assert shown("a") == {"id": "a", "name": "new"}
        assert shown("b") == {"id": "b", "name": "new"}
        assert shown("c") == {"id": "c", "name": "first"}

    def test_equal_guard_overwrites(self, write: Write, shown: Shown) -> None:
        write(upsert("a", 5, "before the filter was widened"))
        assert_applied(write(upsert("a", 5, "after")))
        assert shown("a") == {"id": "a", "name": "after"}

    def test_upsert_after_delete_of_the_same_version_wins(self, write: Write, shown: Shown) -> None:
        write(upsert("a", 1, "old"))
        assert_applied(write(deletion("a", 5)))
        assert_applied(write(upsert("a", 5, "moved back")))
        assert shown("a") == {"id": "a", "name": "moved back"}

    def test_upsert_before_delete_of_the_same_version_wins(self, write: Write, shown: Shown) -> None:
        write(upsert("a", 5, "moved here"))
        assert list(write(deletion("a", 5)).stale) == [0]
        assert shown("a") == {"id": "a", "name": "moved here"}

    def test_older_upsert_after_a_delete_stays_deleted(self, write: Write, shown: Shown) -> None:
        write(upsert("a", 3, "one"))
        assert_applied(write(deletion("a", 5)))
        assert list(write(upsert("a", 4, "late")).stale) == [0]
        assert shown("a") is None

    def test_delete_of_absent_key_is_noop(self, write: Write, shown: Shown) -> None:
        result = write(upsert("a", 5, "one"), deletion("missing", 5))
        assert list(result.noop) == [1]
        assert not [*result.stale, *result.rejected, *result.retry]
        assert shown("missing") is None

    def test_delete_of_absent_key_beats_an_older_upsert(self, write: Write, shown: Shown) -> None:
        write(deletion("a", 5))
        assert list(write(upsert("a", 4, "late")).stale) == [0]
        assert shown("a") is None

    def test_key_can_be_created_again_after_its_delete(self, write: Write, shown: Shown) -> None:
        write(upsert("a", 1, "one"))
        write(deletion("a", 2))
        assert_applied(write(upsert("a", 3, "again")))
        assert shown("a") == {"id": "a", "name": "again"}

    def test_higher_epoch_beats_a_higher_version(self, write: Write, shown: Shown) -> None:
        write(upsert("a", 9000, "before the resync"))
        assert_applied(write(upsert("a", 2, "after", epoch=2)))
        assert list(write(upsert("a", 9001, "leftover writer")).stale) == [0]
        assert shown("a") == {"id": "a", "name": "after"}

    def test_versions_of_many_digits_keep_their_order(self, write: Write, shown: Shown) -> None:
        high = 2**43 - 1
        write(upsert("a", high - 1, "old", epoch=2**18), upsert("b", 10, "new"))
        assert_applied(write(upsert("a", high, "new", epoch=2**18)))
        assert list(write(upsert("b", 9, "old")).stale) == [0]
        assert shown("a") == {"id": "a", "name": "new"}
        assert shown("b") == {"id": "b", "name": "new"}

    def test_odd_keys_stay_distinct(self, write: Write, shown: Shown, odd_keys: list[str]) -> None:
        assert_applied(write(*(upsert(key, 5, f"name of {key}") for key in odd_keys)))
        for key in odd_keys:
            assert shown(key) == {"id": key, "name": f"name of {key}"}
        assert_applied(write(*(deletion(key, 6) for key in odd_keys[::2])))
        assert [key for key in odd_keys if shown(key)] == odd_keys[1::2]

    def test_slice_of_a_chunk_is_written_like_a_chunk(
        self, write: Write, spark: SparkSession, sink: ArrowSink, route: RouteSpec, schema: StructType, shown: Shown
    ) -> None:
        write(upsert("d", 9, "newer"))
        changes = [upsert(key, 5, f"{key}é") for key in "abcdef"]
        chunk = render_chunk(spark, sink, route, schema, changes)
        assert list(sink.write(chunk.slice(2, 3)).stale) == [1]
        assert [key for key in "abcdef" if shown(key)] == ["c", "d", "e"]
        assert shown("c") == {"id": "c", "name": "cé"}

    @pytest.mark.usefixtures("write")
    def test_concurrent_writers_leave_the_highest_guard(
        self, spark: SparkSession, sink: ArrowSink, route: RouteSpec, schema: StructType, shown: Shown
    ) -> None:
        keys = [f"k{number}" for number in range(20)]
        versions = range(1, WRITERS * ROUNDS + 1)
        changes = [upsert(key, version, f"v{version}") for version in versions for key in keys]
        chunk = render_chunk(spark, sink, route, schema, changes)

        def deliver(writer: int) -> None:
            own = type(sink)(sink.settings)
            own.open(route)
            for version in versions[writer::WRITERS]:
                assert not own.write(chunk.slice((version - 1) * len(keys), len(keys))).rejected
            own.close()

        with ThreadPoolExecutor(WRITERS) as pool:
            list(pool.map(deliver, range(WRITERS)))
        assert [shown(key) for key in keys] == [{"id": key, "name": f"v{versions[-1]}"} for key in keys]

    def test_an_owner_and_epoch_survive_writing(self, write: Write, sink: ArrowSink, route: RouteSpec) -> None:
        before = sink.read_claim(route)
        write(upsert("a", 1, "one"))
        assert sink.read_claim(route) == before
