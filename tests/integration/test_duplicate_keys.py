"""Tests of keys that do not identify a row: the sink shows none of several rows, and a comparison finds those that the feed can't show."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from cdf_replicator.state.command_queue import Command
from tests.support import light_table
from tests.support.tiers import nightly


@pytest.fixture
def started(prepared):
    return prepared(four_rows)


def four_rows(world):
    world.create(rows=["(1, 'a')", "(2, 'b')", "(3, 'c')", "(9, 'z')"])
    assert world.run() is None


def letters(world):
    return [
        (key, version, json.loads(row)["name"], state)
        for key, version, code, row, state in world.dead_letters("key", "commit_version", "code", "row", "state")
        if code == "duplicate_key"
    ]


def test_duplicate_key_shows_no_row_and_later_changes_keep_its_report(started, lose_commit):
    started.insert("(1, 'again')", "(5, 'x')", "(5, 'y')", "(6, 'twin')", "(6, 'twin')", "(7, 'one')")
    # Of a row that the sink has shown, and of a row of another commit.
    started.change("UPDATE {t} SET name = 'both' WHERE id = 1")
    assert started.run() is None
    kept = [
        ("1", 3, "both", "open"),
        ("5", 2, "x", "open"),
        ("5", 2, "y", "open"),
        ("6", 2, "twin", "open"),
    ]
    assert letters(started) == kept
    assert started.delivered().keys() == {"2", "3", "7", "9"}
    assert started.last_batch().rejected == {"duplicate_key": 3}

    lose_commit("orders_files")
    assert started.run() is None
    assert letters(started) == kept, "a redelivered batch finds its letters written"

    started.change("DELETE FROM {t} WHERE name = 'y'")  # one of the two: the feed says that key 5 is gone
    started.change("UPDATE {t} SET name = 'later' WHERE id = 6 OR id = 7")
    assert started.run() is None
    assert started.delivered().keys() == {"2", "3", "7", "9"}, "5 is there once more, and absent"
    assert {(key, state) for key, _, _, state in letters(started)} == {("1", "open"), ("5", "open"), ("6", "open")}

    assert started.run(command=Command("resync", "orders_files")) is None
    assert started.delivered().keys() == {"2", "3", "5", "7", "9"}, "of 5 one row is left"
    started.change("DELETE FROM {t} WHERE id IN (1, 6)")
    assert started.run(command=Command("resync", "orders_files")) is None
    assert started.delivered() == started.expected()
    assert {state for *_, state in letters(started)} == {"void"}


@pytest.mark.parametrize("files", ["1", nightly("1000")])
def test_entries_and_dead_letters_do_not_depend_on_commit_splits(started, files):
    started.environ["CDF_TABLES__ORDERS__MAX_FILES_PER_TRIGGER"] = files
    started.insert("(5, 'x')", "(5, 'y')", "(6, 'x')", "(6, 'y')", "(NULL, 'same')")
    started.sql("UPDATE {t} SET name = name WHERE id = 5 OR id = 3")  # of 5 that is no pair of images
    started.change("DELETE FROM {t} WHERE id = 5 AND name = 'x'")
    started.change("DELETE FROM {t} WHERE id = 6")
    started.insert("(6, 'only')", "(NULL, 'same')")
    assert started.run() is None
    kept = [
        ("5", 2, "x", "open"),
        ("5", 2, "y", "open"),
        ("5", 3, "x", "open"),
        ("5", 3, "y", "open"),
        ("6", 2, "x", "open"),
        ("6", 2, "y", "open"),
    ]
    assert started.delivered().keys() == {"1", "2", "3", "6", "9"}
    assert letters(started) == kept
    assert [version for key, version in started.dead_letters("key", "commit_version") if key is None] == [2, 6]
    assert started.run(start_version=1) is None
    assert started.delivered().keys() == {"1", "2", "3", "6", "9"}, "after a replay"
    assert letters(started) == kept


def test_filtered_rows_do_not_count_as_duplicates(started):
    started.environ["CDF_ROUTES__ORDERS_FILES__FILTER"] = "name <> 'draft'"
    assert started.run(command=Command("resync", "orders_files")) is None
    started.insert("(5, 'x')", "(5, 'draft')", "(6, 'x')", "(6, 'y')", "(6, 'draft')", "(7, NULL)", "(7, 'z')")
    started.change("UPDATE {t} SET name = 'draft' WHERE id = 6 AND name = 'x'")  # in the feed, key 6 is gone
    assert started.run() is None
    assert started.delivered().keys() == {"1", "2", "3", "5", "7", "9"}
    assert [(key, name) for key, _, name, _ in letters(started)] == [("6", "x"), ("6", "y")]
    decision = started.run(command=Command("resync", "orders_files"))
    assert decision is None, "of each key one row passes"
    assert started.delivered() == started.expected(lambda row: row["name"] not in {None, "draft"})


def test_duplicates_of_different_commits_are_found_by_comparison_only(started):
    """In different commits, or in files of one commit that went into two micro-batches."""
    started.environ["CDF_TABLES__ORDERS__MAX_FILES_PER_TRIGGER"] = "1"
    started.insert("(1, 'second')")
    started.insert("(5, '0')", "(5, '1')")  # a file each
    assert started.run() is None
    assert started.delivered()["1"] == {"id": 1, "name": "second"}
    assert started.delivered()["5"]["name"] in {"0", "1"}
    assert letters(started) == []
    counts = Counter(row["id"] for row in light_table.read(started.table))
    assert {key for key, rows in counts.items() if rows > 1} == {1, 5}
    assert started.run(command=Command("resync", "orders_files")) is None
    assert started.delivered().keys() == {"2", "3", "9"}
    assert [(key, name) for key, _, name, _ in letters(started)] == [
        ("1", "a"),
        ("1", "second"),
        ("5", "0"),
        ("5", "1"),
    ]


def test_duplicates_in_the_first_load_are_dead_letters_up_to_the_limit(world, lose_commit):
    world.create(rows=["(1, 'a')", "(2, 'x')", "(2, 'y')", "(3, 'bad')", "(NULL, 'z')"])
    assert world.run() is None
    kept = [(None, "null_key"), ("2", "duplicate_key"), ("2", "duplicate_key"), ("3", "bad_name")]
    assert sorted(world.dead_letters("key", "code"), key=str) == sorted(kept, key=str)
    assert world.delivered().keys() == {"1"}
    assert world.last_batch().rejected == {"null_key": 1, "duplicate_key": 1, "bad_name": 1}
    assert world.board.snapshot().routes[0].dead_letters == 4

    world.insert(*(f"({key}, 'twin')" for key in range(100, 201)), *(f"({key}, 'twin')" for key in range(100, 201)))
    decision = world.run(command=Command("resync", "orders_files"))
    assert (decision.action, decision.reason) == ("halt", "too_many_rejected")
    assert "several rows of 102 keys: 100 (2 rows)" in decision.message
    world.environ["CDF_DELIVERY__MAX_REJECTED_SHARE"] = "1"
    assert world.run() is None
    assert len([state for (state,) in world.dead_letters("state") if state == "open"]) == 2 + 2 + 101, (
        "one of identical rows"
    )
