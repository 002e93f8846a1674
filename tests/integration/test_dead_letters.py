"""A rejected change is recorded with its reason; the sink lacks the key until a later change is accepted."""

from __future__ import annotations

import json

import pytest

from cdf_replicator.delivery.dead_letters import DeadLetters
from cdf_replicator.state import checkpoint
from cdf_replicator.state.command_queue import Command


def test_refused_row_is_kept_with_its_reason_and_delivery_continues(started):
    started.insert("(3, 'bad')", "(4, 'd')")
    assert started.run() is None
    assert started.delivered().keys() == {"1", "2", "4"}
    columns = ("route", "table", "sink", "key", "change_type", "commit_version", "code", "reason", "state")
    assert started.dead_letters(*columns) == [
        ("orders_files", "orders", "files", "3", "insert", 2, "bad_name", "the name is bad", "open")
    ]
    ((row,),) = started.dead_letters("row")
    assert json.loads(row) == {"id": 3, "name": "bad"}
    assert started.last_batch().rejected == {"bad_name": 1}
    assert started.board.snapshot().routes[0].dead_letters == 1


def test_a_key_whose_newest_row_is_refused_is_absent(started):
    started.change("UPDATE {t} SET name = 'bad' WHERE id = 1")
    assert started.run() is None
    assert started.delivered().keys() == {"2"}


def test_refused_key_is_absent_for_every_split_of_the_commits(started):
    """The older entry's own insert may come in the same micro-batch or in one before it."""
    started.environ["CDF_TABLES__ORDERS__MAX_FILES_PER_TRIGGER"] = "1"
    started.insert("(3, 'c')")
    started.change("UPDATE {t} SET name = 'bad' WHERE id = 3")
    started.change("UPDATE {t} SET name = 'fine' WHERE id = 2")
    assert started.run() is None
    assert started.delivered().keys() == {"1", "2"}


@pytest.mark.parametrize("correction", ["UPDATE {t} SET name = 'good' WHERE id = 1", "DELETE FROM {t} WHERE id = 1"])
def test_a_later_change_of_the_key_closes_its_letter(started, correction):
    started.change("UPDATE {t} SET name = 'bad' WHERE id < 3")
    assert started.run() is None
    assert started.dead_letters("key", "state") == [("1", "open"), ("2", "open")]
    started.change(correction)
    assert started.run() is None
    assert started.dead_letters("key", "state") == [("1", "superseded"), ("2", "open")]
    assert started.delivered() == {key: row for key, row in started.expected().items() if key != "2"}
    assert started.board.snapshot().routes[0].dead_letters == 1


def test_a_second_refusal_of_a_key_leaves_both_letters_open(started):
    started.change("UPDATE {t} SET name = 'bad' WHERE id = 1")
    assert started.run() is None
    started.change("UPDATE {t} SET name = 'bad too' WHERE id = 1")
    assert started.run() is None
    assert started.dead_letters("commit_version", "state") == [(2, "open"), (3, "open")]


def test_a_redelivered_micro_batch_does_not_double_its_letters(started, lose_commit):
    started.insert("(3, 'bad')", "(NULL, 'x')", "(NULL, 'x')")
    assert started.run() is None
    kept = started.dead_letters("id", "created_at")
    assert len(kept) == 2
    lose_commit("orders_files")
    assert started.run() is None
    assert started.dead_letters("id", "created_at") == kept


def test_a_column_added_before_a_redelivery_does_not_double_its_letters(started, lose_commit):
    started.insert("(NULL, 'x')", "(NULL, 'y')", "(5, 'one')", "(5, 'two')")
    assert started.run() is None
    kept = started.dead_letters("id", "row", "created_at")
    assert len(kept) == 4
    lose_commit("orders_files")
    started.sql("ALTER TABLE {t} ADD COLUMNS (extra string)")
    assert started.run() is None
    assert started.dead_letters("id", "row", "created_at") == kept
    assert started.board.snapshot().routes[0].dead_letters == 4


def test_a_letter_is_kept_before_the_checkpoint_moves(started, monkeypatch):
    started.insert("(3, 'bad')")

    def die(*_):
        raise RuntimeError("the plug was pulled")

    with monkeypatch.context() as patch:
        patch.setattr(DeadLetters, "add", die)
        assert started.run().reason == "bug"
    assert checkpoint.last_committed(started.state_path.checkpoint("orders_files", 0)) is None
    assert started.run() is None
    assert started.dead_letters("key") == [("3",)]


def test_each_row_without_a_key_is_a_dead_letter(world):
    world.create(rows=["(1, 'a')", "(NULL, 'x')", "(NULL, 'y')"])
    assert world.run() is None
    world.insert("(NULL, 'z')", "(2, 'b')")
    world.change("DELETE FROM {t} WHERE name = 'x'")
    assert world.run() is None
    assert world.delivered().keys() == {"1", "2"}
    assert [(key, code, json.loads(row)["name"]) for key, code, row in world.dead_letters("key", "code", "row")] == [
        (None, "null_key", "x"),
        (None, "null_key", "y"),
        (None, "null_key", "z"),
    ]


def test_too_many_rejections_halt_the_route_and_keep_the_checkpoint(started):
    started.insert(*(f"({number}, 'bad')" for number in range(100, 201)))
    decision = started.run()
    assert (decision.action, decision.reason) == ("halt", "too_many_rejected")
    assert "refused 101 of 101" in decision.message
    assert "the name is bad" in decision.message
    assert checkpoint.last_committed(started.state_path.checkpoint("orders_files", 0)) is None
    assert started.dead_letters("key") == []
    started.environ["CDF_DELIVERY__MAX_REJECTED_SHARE"] = "1"
    assert started.run() is None
    assert len(started.dead_letters("key")) == 101


def test_a_hundred_rejections_never_halt(started):
    started.insert(*(f"({number}, 'bad')" for number in range(100, 200)))
    assert started.run() is None
    assert len(started.dead_letters("key")) == 100


def test_a_resync_voids_the_letters_of_older_epochs(started):
    started.insert("(3, 'bad')", "(4, 'bad')", "(NULL, 'x')")
    assert started.run() is None
    started.change("DELETE FROM {t} WHERE id = 3")
    assert started.run(command=Command("resync", "orders_files")) is None
    assert [key for key, state in started.dead_letters("key", "state") if state == "open"] == ["4", None]
    assert started.delivered().keys() == {"1", "2"}


def test_append_sink_keeps_earlier_rows_of_a_refused_key(world):
    world.into_lines()
    world.create(rows=["(1, 'a')"])
    assert world.run("orders_lines") is None
    world.change("UPDATE {t} SET name = 'bad'")
    assert world.run("orders_lines") is None
    world.change("UPDATE {t} SET name = 'b'")
    world.change("UPDATE {t} SET name = 'c'")
    assert world.run("orders_lines") is None
    assert [(version, kind, row["name"]) for _, version, kind, row in sorted(world.lines())] == [
        (1, "snapshot", "a"),
        (3, "update_postimage", "b"),
        (4, "update_postimage", "c"),
    ]
    assert world.dead_letters("commit_version", "state") == [(2, "open")], "that change is missing for good"


def test_append_sink_loses_no_refused_change_of_a_shared_key(world):
    world.into_lines()
    world.create(rows=["(1, 'a')"])
    assert world.run("orders_lines") is None
    world.insert("(3, 'fine')", "(3, 'bad a')", "(3, 'bad b')", "(4, 'bad c')", "(4, 'bad d')")
    assert world.run("orders_lines") is None
    assert [row["name"] for *_, row in world.lines()] == ["a", "fine"]
    several = "the name is bad; the sink refused 2 of 3 changes with this key in this commit: as it does not name them, each is a dead letter"
    assert sorted((json.loads(row)["name"], reason) for row, reason in world.dead_letters("row", "reason")) == [
        ("bad a", several),
        ("bad b", several),
        ("bad c", "the name is bad"),
        ("bad d", "the name is bad"),
        ("fine", several),
    ]
    assert world.board.snapshot().routes[0].dead_letters == 5
