"""Replays while no service runs: the command takes the lease and does the work itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.reading import entries
from tests.support.service import Ended, command, environment

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from deploy.servers import Redis
    from tests.process.conftest import Source

AUDITED = ["id", "name", "amount", "change_type", "commit_version"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("replay")


@pytest.fixture(scope="module")
def past(folder: Path, new_source: Callable[..., Source]) -> Source:
    """Versions 0 (created), 1 (10 inserts), 2 (3 updates), 3 (2 deletes), 4 (5 inserts)."""
    source = new_source(folder, "past")
    source.sql("UPDATE {} SET amount = 1 WHERE id < 3")
    source.sql("DELETE FROM {} WHERE id >= 8")
    source.sql("INSERT INTO {} SELECT id + 50, 'later', 0 FROM range(5)")
    return source


@pytest.fixture(scope="module")
def given(folder: Path, past: Source, sinks: Callable[[Path], dict[str, object]]) -> dict[str, str]:
    return environment(
        folder,
        **sinks(folder),
        TABLES__PAST__PATH=past.path,
        TABLES__PAST__KEYS="id",
        TABLES__PAST__SINKS="audit,cache",
    )


def delivered(ended: Ended, route: str) -> list[tuple[str, int]]:
    """Versions and changes of each micro-batch that a command delivered to a route."""
    batches = [entry for entry in ended.entries if entry["message"] == "batch delivered" and entry["route"] == route]
    return [(entry["versions"], entry["received"]) for entry in batches]


def audited(past: Source, folder: Path) -> list[tuple[object, ...]]:
    frame = past.spark.read.format("delta").load(str(folder / "audit" / "past"))
    return sorted(tuple(row) for row in frame.select(AUDITED).collect())


def test_run_from_a_version_delivers_from_there_and_the_same_again_goes_on(
    given: dict[str, str], past: Source, folder: Path, redis_server: Redis
):
    first = command(given, "run", "--once", "--starting-version", "2")
    assert first.code == 0, first.log
    assert delivered(first, "past_cache") == [("2-4", 13)]
    assert {row[-1] for row in audited(past, folder)} == {2, 3, 4}

    past.sql("UPDATE {} SET amount = 2 WHERE id = 0")
    again = command(given, "run", "--once", "--starting-version", "past=2")
    assert again.code == 0, again.log
    assert delivered(again, "past_cache") == [("5-5", 2)]

    other = command(given, "run", "--once", "--starting-version", "1")
    assert other.code == 0, other.log
    assert delivered(other, "past_cache") == [("1-5", 25)]
    assert entries(redis_server.url, "past:") == past.rows
    kept = audited(past, folder)
    assert len(kept) == len(set(kept)) == 10 + 3 + 2 + 5 + 1


def test_a_dry_run_tells_rows_by_version_and_change_type_and_writes_nothing(
    given: dict[str, str], past: Source, folder: Path
):
    before = tree(folder)

    ended = command(given, "replay", "past", "--starting-version", "2", "--dry-run")

    assert ended.code == 0, ended.log
    numbers = [[word for word in line.split() if word.isdigit()] for line in ended.output.splitlines()]
    assert ["2", "0", "3", "3", "0"] in numbers
    assert ["3", "0", "0", "0", "2"] in numbers
    assert ["4", "5", "0", "0", "0"] in numbers
    assert "past_audit, past_cache. Nothing was written." in ended.output
    assert tree(folder) == before


def test_a_replay_with_an_end_is_refused_where_it_would_bring_deleted_keys_back(given: dict[str, str]):
    words = ("--starting-version", "1", "--ending-version", "2", "--yes")
    ended = command(given, "replay", "past_cache", *words, within=30)

    assert ended.code == 2
    (entry,) = ended.entries
    assert "it would bring deleted keys back" in entry["message"]
    assert entry["routes"] == ["past_cache"]


def test_a_replay_takes_the_lease_where_no_service_runs(
    given: dict[str, str], past: Source, folder: Path, redis_server: Redis
):
    before = audited(past, folder)

    ended = command(given, "replay", "past", "--starting-version", "1", "--yes")

    assert ended.code == 0, ended.log
    assert sum(rows for _, rows in delivered(ended, "past_cache")) == 25
    assert entries(redis_server.url, "past:") == past.rows
    assert audited(past, folder) == before


def test_nobody_to_ask_means_no_replay(given: dict[str, str]):
    ended = command(given, "replay", "past", "--starting-version", "1", within=30)

    assert ended.code == 2
    assert "add --yes" in ended.entries[0]["message"]


def tree(folder: Path) -> dict[str, int]:
    """Every file of state and audit, by when it was written."""
    files = [file for name in ("state", "audit") for file in (folder / name).rglob("*") if file.is_file()]
    return {str(file): file.stat().st_mtime_ns for file in files}
