"""Tests of commands within this process, from their arguments to their output and to the content of the sinks."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tests.support import light_table
from tests.support.reading import entries
from tests.support.service import Ended, environment
from tests.support.source import Source

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from deploy.local.servers import Redis

    Here = Callable[..., Ended]

AUDITED = ["id", "name", "amount", "change_type", "commit_version"]
MOST_BYTES = 1000
REFUSED = (3, 5, 8)


def test_changes_prints_data_on_stdout_and_its_log_on_stderr(spark: SparkSession, tmp_path: Path, here: Here):
    """For a path nothing needs to be configured; for a slug, neither state path nor sinks."""
    source = Source.created(lambda: spark, tmp_path / "past")
    source.change("UPDATE {} SET amount = 1 WHERE id = 7")
    known = {"CDF_TABLES__PAST__PATH": str(source.path), "CDF_TABLES__PAST__KEYS": "id"}

    of_key = here(known, "changes", "past", "--from", "0", "--to", "2", "--key", "7", "--format", "json")
    assert of_key.code == 0, of_key.log
    rows = [json.loads(line) for line in of_key.output.splitlines()]
    assert [(row["_commit_version"], row["_change_type"], row["amount"]) for row in rows] == [
        (1, "insert", 70),
        (2, "update_preimage", 70),
        (2, "update_postimage", 1),
    ]

    by_time = here(
        *({}, "changes", str(source.path), "--from-timestamp", "2000-01-01", "--to-timestamp", "2100-01-01"),
        *("--keys", "id", "--key", "7", "--limit", "2", "--format", "json"),
    )
    assert by_time.code == 0, by_time.log
    assert [json.loads(line)["amount"] for line in by_time.output.splitlines()] == [70, 70]

    absent = here(known, "changes", "past", "--from", "9")
    assert (absent.code, absent.output) == (1, "")
    assert "changes of versions 0 to 2 are available" in absent.log


def test_enable_prints_the_first_version_of_the_feed(spark: SparkSession, tmp_path: Path, here: Here):
    path = tmp_path / "plain"
    spark.sql(f"CREATE TABLE delta.`{path}` (id BIGINT) USING delta")
    ended = here({}, "enable", str(path))
    assert ended.code == 0, ended.log
    assert f"{path}): the change feed is on from version 1 on. Changes made before are not in it" in ended.output


def test_errors_of_a_command_are_text_off_a_terminal(tmp_path: Path, here: Here):
    ended = here({}, "enable", str(tmp_path / "absent"))
    assert (ended.code, ended.entries) == (1, [])
    assert "is not a Delta table" in ended.log


def test_run_from_a_version_and_replay_without_a_service(
    spark: SparkSession, tmp_path: Path, redis_server: Redis, here: Here
):
    """The command takes the lease and does the work itself; each change is in the audit table once."""
    source = Source.created(lambda: spark, tmp_path / "past")  # version 1: 10 inserts
    source.change("UPDATE {} SET amount = 1 WHERE id < 3")
    source.change("DELETE FROM {} WHERE id >= 8")
    source.insert(*(f"({number}, 'later', 0)" for number in range(50, 55)))  # version 4
    given = environment(
        tmp_path,
        TABLES__PAST__PATH=source.path,
        TABLES__PAST__KEYS="id",
        TABLES__PAST__SINKS="audit,cache",
        SINKS__AUDIT__TYPE="delta_audit",
        SINKS__AUDIT__PATH=tmp_path / "audit",
        SINKS__CACHE__TYPE="redis",
        SINKS__CACHE__URL=redis_server.url,
        LOG__FORMAT="json",
    )

    first = here(given, "run", "--once", "--starting-version", "2")
    assert first.code == 0, first.log
    assert delivered(first, "past_cache") == [("2-4", 13)]
    header, *routes = (line.split() for line in first.output.splitlines())
    assert header == ["ROUTE", "STATE", "VERSIONS", "ROWS", "REJECTED", "SECONDS"]
    assert {tuple(cells[:-1]) for cells in routes} == {
        ("past_audit", "stopped", "2-4", "10", "0"),
        ("past_cache", "stopped", "2-4", "13", "0"),
    }
    assert all(float(cells[-1]) > 0 for cells in routes)
    assert {row[-1] for row in audited(tmp_path)} == {2, 3, 4}

    source.change("UPDATE {} SET amount = 2 WHERE id = 0")
    again = here(given, "run", "--once", "--starting-version", "past=2")
    assert again.code == 0, again.log
    assert delivered(again, "past_cache") == [("5-5", 2)]

    before = files(tmp_path)
    dry = here(given, "replay", "past", "--starting-version", "2", "--dry-run")
    assert dry.code == 0, dry.log
    numbers = [[word for word in line.split() if word.isdigit()] for line in dry.output.splitlines()]
    assert [line for line in numbers if line] == [
        ["2", "5"],
        ["2", "0", "3", "3", "0"],
        ["3", "0", "0", "0", "2"],
        ["4", "5", "0", "0", "0"],
        ["5", "0", "1", "1", "0"],
        ["5", "4", "4", "2"],
    ]
    assert "past_audit, past_cache. Nothing was written." in dry.output
    unconfirmed = here(given, "replay", "past", "--starting-version", "1")
    assert (unconfirmed.code, "add --yes" in unconfirmed.entries[0]["message"]) == (2, True)
    bounded = here(given, "replay", "past_cache", "--starting-version", "1", "--ending-version", "2", "--yes")
    assert (bounded.code, bounded.entries[0]["routes"]) == (2, ["past_cache"])
    assert "it would restore deleted keys" in bounded.entries[0]["message"]
    assert files(tmp_path) == before

    replayed = here(given, "replay", "past", "--starting-version", "1", "--yes")
    assert replayed.code == 0, replayed.log
    assert sum(rows for _, rows in delivered(replayed, "past_cache")) == 25
    assert entries(redis_server.url, "past:") == source.rows
    kept = audited(tmp_path)
    assert len(kept) == len(set(kept)) == 10 + 3 + 2 + 5 + 1


def delivered(ended: Ended, route: str) -> list[tuple[str, int]]:
    """Versions and changes of each micro-batch that a command delivered to a route."""
    batches = [entry for entry in ended.entries if entry["message"] == "batch delivered" and entry["route"] == route]
    return [(entry["versions"], entry["received"]) for entry in batches]


def audited(folder: Path) -> list[tuple[object, ...]]:
    rows = light_table.read(str(folder / "audit" / "past"), AUDITED)
    assert rows is not None
    return sorted(tuple(row.values()) for row in rows)


def files(folder: Path) -> dict[str, int]:
    """Every file of state and audit, by when it was written."""
    found = [file for name in ("state", "audit") for file in (folder / name).rglob("*") if file.is_file()]
    return {str(file): file.stat().st_mtime_ns for file in found}


def test_letters_are_listed_shown_redriven_and_discarded(
    spark: SparkSession, tmp_path: Path, redis_server: Redis, here: Here
):
    source = Source.created(lambda: spark, tmp_path / "letters")
    source.change(f"UPDATE {{}} SET name = repeat('x', {MOST_BYTES}) WHERE id IN {REFUSED}")
    given = environment(
        tmp_path,
        TABLES__LETTERS__PATH=source.path,
        TABLES__LETTERS__KEYS="id",
        TABLES__LETTERS__SINKS="cache",
        SINKS__CACHE__TYPE="redis",
        SINKS__CACHE__URL=redis_server.url,
        SINKS__CACHE__MAX_VALUE_BYTES=MOST_BYTES,
        DELIVERY__MAX_REJECTED_SHARE=1,
    )
    assert here(given, "run", "--once").code == 0

    def listed(*more: str) -> dict[str, dict[str, Any]]:
        ended = here(given, "dead-letters", "list", "letters_cache", "--limit", "10", "--format", "json", *more)
        assert ended.code == 0, ended.log
        return {letter["key"]: letter for letter in map(json.loads, ended.output.splitlines())}

    open_ = listed()
    assert open_.keys() == set(map(str, REFUSED))
    shown = here(given, "dead-letters", "show", open_["5"]["id"][:12])
    assert json.loads(shown.output)["row"] == {"id": 5, "name": "x" * MOST_BYTES, "amount": 50}
    assert "MAX_VALUE_BYTES" in json.loads(shown.output)["reason"]

    source.change("UPDATE {} SET name = 'short' WHERE id = 3")
    given_up = here(given, "dead-letters", "discard", "letters_cache", open_["5"]["id"], "--yes")
    assert given_up.code == 0, given_up.log
    written = here(given, "dead-letters", "redrive", "letters_cache", "--yes")
    assert written.code == 0, written.log
    assert listed().keys() == {"8"}
    every = here(given, "dead-letters", "list", "--all", "--format", "json")
    states = sorted((letter["key"], letter["state"]) for letter in map(json.loads, every.output.splitlines()))
    assert states == [("3", "superseded"), ("5", "discarded"), ("8", "open"), ("8", "redriven")]
    shown_rows = {key: row for key, row in source.rows.items() if key not in ("5", "8")}
    assert entries(redis_server.url, "letters:") == shown_rows
