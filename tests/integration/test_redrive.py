"""Tests of redrive and discard: a redrive writes the present row of the source, and a discarded letter is kept."""

from __future__ import annotations

import json
import shutil

import pytest

from cdf_replicator.state.command_queue import Command
from tests.support import light_table

ROUTE = "orders_files"


@pytest.fixture
def started(prepared):
    return prepared(refused_twice)


def refused_twice(world):
    """Deliver keys 1 and 2; the sink refuses 3 and 4."""
    world.create(rows=["(1, 'a')", "(2, 'b')"])
    assert world.run() is None
    world.insert("(3, 'bad')", "(4, 'bad too')")
    assert world.run() is None
    assert world.dead_letters("key", "state") == [("3", "open"), ("4", "open")]


def redrive(world, *letters, kind="redrive", route=ROUTE):
    return answered(world, Command(kind, route, letters=letters), route)


def answered(world, command, route=ROUTE):
    assert world.run(route, command=command) is None
    return world.answer(command)


def letter_of(world, key):
    (found,) = [letter for letter, *rest in world.dead_letters("id", "key", "state") if rest == [key, "open"]]
    return found


def test_redrive_writes_the_present_row_and_no_deleted_key(started):
    started.change("UPDATE {t} SET name = 'repaired' WHERE id = 3")
    started.change("DELETE FROM {t} WHERE id = 4")
    started.trouble("tolerant")
    answer = redrive(started)
    assert (answer.state, answer.message) == ("done", "2 keys written as of version 4, 0 of them refused again")
    assert started.delivered() == started.expected()
    assert set(started.delivered()) == {"1", "2", "3"}
    assert started.dead_letters("key", "state") == [("3", "redriven"), ("4", "redriven")]
    assert started.board.snapshot().routes[0].dead_letters == 0


def test_row_refused_again_is_one_dead_letter_of_the_present_row(started):
    started.change("UPDATE {t} SET name = 'bad still' WHERE id = 3")
    for _ in range(2):
        assert "1 of them refused again" in redrive(started, letter_of(started, "3")).message
        kept = [
            (json.loads(row)["name"], state)
            for key, row, state in started.dead_letters("key", "row", "state")
            if key == "3"
        ]
        assert sorted(kept) == [("bad", "redriven"), ("bad still", "open")]
    assert set(started.delivered()) == {"1", "2"}


def test_redrive_after_a_refused_redrive_of_one_version_delivers_its_keys(started):
    assert redrive(started).message == "2 keys written as of version 2, 2 of them refused again"
    started.trouble("tolerant")
    assert redrive(started).message == "2 keys written as of version 2, 0 of them refused again"
    assert started.delivered() == started.expected()
    assert started.dead_letters("key", "state") == [("3", "redriven"), ("4", "redriven")]


def test_delete_that_is_refused_again_is_closed_by_the_redrive_that_succeeds(started):
    started.trouble("referenced")
    started.change("DELETE FROM {t} WHERE id = 2")
    assert started.run() is None
    started.trouble("referenced")
    assert (
        redrive(started, letter_of(started, "2")).message == "1 keys written as of version 3, 1 of them refused again"
    )
    letters = [letter for letter in started.dead_letters("key", "guard", "state") if letter[0] == "2"]
    first, again = (letter[1] for letter in letters)
    assert letters == [("2", first, "redriven"), ("2", again, "open")]
    started.trouble("tolerant")
    assert redrive(started).message == "3 keys written as of version 3, 0 of them refused again"
    assert started.delivered() == started.expected()
    assert {state for (state,) in started.dead_letters("state")} == {"redriven"}
    assert started.board.snapshot().routes[0].dead_letters == 0


def test_stale_redrive_after_a_refused_repair_keeps_its_dead_letters_open(started):
    started.environ["CDF_SINKS__FILES__TYPE"] = "endless"  # its entries can be repaired
    repair = Command("repair", ROUTE, identities=("3",))
    assert started.run(command=repair) is None
    assert started.answer(repair).message == "1 entries written as of version 2, 1 refused by the sink"
    started.trouble("tolerant")
    answer = redrive(started, letter_of(started, "3"))
    assert answer.message == "1 keys written as of version 2, 0 of them refused again, 1 with a higher guard"
    assert "3" not in started.delivered()
    assert started.dead_letters("key", "state") == [("3", "open"), ("4", "open")]
    assert started.board.snapshot().routes[0].dead_letters == 2
    started.insert("(5, 'e')")
    assert redrive(started).message == "2 keys written as of version 3, 0 of them refused again"
    assert started.delivered() == started.expected()
    assert started.dead_letters("key", "state") == [("3", "redriven"), ("4", "redriven")]


def test_redriven_row_that_a_replay_finds_refused_is_a_dead_letter_again(started):
    started.trouble("tolerant")
    assert redrive(started).state == "done"
    started.trouble(None)
    (file,) = [file for file in (started.files / "orders").glob("*.json") if json.loads(file.read_text())["key"] == "3"]
    file.unlink()  # the target has lost the redrive
    assert started.run(command=Command("replay", ROUTE, 2)) is None
    assert "3" not in started.delivered()
    assert started.dead_letters("key", "state") == [("3", "open"), ("4", "open")]
    assert started.board.snapshot().routes[0].dead_letters == 2
    started.trouble("tolerant")
    assert redrive(started).state == "done"
    assert started.delivered() == started.expected()


def test_redrive_retries_a_sink_after_a_short_outage(started):
    started.trouble("away once")
    assert redrive(started).message == "2 keys written as of version 2, 2 of them refused again"
    assert (started.files / "called").exists()


def test_redrive_reports_an_unreachable_sink_with_the_next_step(started):
    started.trouble("away")
    started.environ["CDF_DELIVERY__RETRY_SECONDS"] = "0.05"
    command = Command("redrive", ROUTE)
    started.run(ROUTE, command=command)
    answer = started.answer(command)
    assert (answer.state, answer.message) == (
        "failed",
        "unreachable: no answer Repeat the command once the error is over.",
    )
    assert started.dead_letters("key", "state") == [("3", "open"), ("4", "open")]


def test_only_the_letters_that_are_named_are_redriven(started):
    started.trouble("tolerant")
    assert redrive(started, letter_of(started, "4")[:8]).message.startswith("1 keys written")
    assert started.dead_letters("key", "state") == [("3", "open"), ("4", "redriven")]
    assert set(started.delivered()) == {"1", "2", "4"}
    assert started.delivered()["4"] == started.expected()["4"], "a row that only the repaired sink takes"


def test_101_rows_refused_again_do_not_halt_the_route(started):
    started.environ["CDF_DELIVERY__MAX_REJECTED_SHARE"] = "1"
    started.insert(*(f"({key}, 'bad')" for key in range(100, 201)))
    assert started.run() is None
    started.environ["CDF_DELIVERY__MAX_REJECTED_SHARE"] = "0"
    assert redrive(started).message == "103 keys written as of version 3, 103 of them refused again"


@pytest.mark.usefixtures("loaded")
def test_redrive_closes_letters_of_missing_and_duplicate_keys_after_source_repair(world):
    world.insert("(NULL, 'x')", "(5, 'one')", "(5, 'two')")
    assert world.run() is None
    assert redrive(world).message.endswith("2 of them refused again")
    assert {state for (state,) in world.dead_letters("state")} == {"open"}
    world.change("DELETE FROM {t} WHERE id IS NULL OR name = 'two'")
    assert redrive(world).message.endswith("0 of them refused again")
    assert world.delivered() == world.expected()
    assert {state for (state,) in world.dead_letters("state")} == {"redriven"}
    assert world.run(command=Command("replay", ROUTE, starting_version=0)) is None
    assert {state for key, state in world.dead_letters("key", "state") if key is None} == {"redriven"}


def test_replica_gets_the_present_row(world):
    """A command that is repeated after a kill before its answer writes the rows of the newest version."""
    world.environ |= {"CDF_TABLES__ORDERS__SINKS": "copy", "CDF_SINKS__COPY__TYPE": "delta_replica"}
    world.environ["CDF_SINKS__COPY__PATH"] = str(world.folder / "copy")
    del world.environ["CDF_SINKS__FILES__TYPE"], world.environ["CDF_SINKS__FILES__PATH"]

    def rows():
        found = light_table.read(str(world.folder / "copy" / "orders"), ("id", "name"))
        return sorted(tuple(row.values()) for row in found)

    world.create(rows=["(1, 'a')", "(5, 'one')", "(5, 'two')"])
    assert world.run("orders_copy") is None
    world.change("DELETE FROM {t} WHERE name = 'two'")
    command = Command("redrive", "orders_copy")
    assert answered(world, command, "orders_copy").message.endswith("0 of them refused again")
    assert rows() == [(1, "a"), (5, "one")]
    world.change("DELETE FROM {t} WHERE id = 5")
    world.insert("(5, 'three')", "(5, 'four')")
    assert world.run("orders_copy") is None
    assert rows() == [(1, "a")]
    world.change("DELETE FROM {t} WHERE name = 'three'")
    answered(world, command, "orders_copy")
    assert rows() == [(1, "a"), (5, "four")]


def test_repeated_redrive_of_a_replica_keeps_letters_of_unwritten_rows(world):
    """After a kill between the write and the close of the dead letters, the replica already has the command's transaction."""
    world.environ |= {"CDF_TABLES__ORDERS__SINKS": "copy", "CDF_SINKS__COPY__TYPE": "delta_replica"}
    world.environ["CDF_SINKS__COPY__PATH"] = str(world.folder / "copy")
    del world.environ["CDF_SINKS__FILES__TYPE"], world.environ["CDF_SINKS__FILES__PATH"]
    world.create(rows=["(1, 'a')", "(5, 'one')", "(5, 'two')"])
    assert world.run("orders_copy") is None
    world.change("DELETE FROM {t} WHERE name = 'two'")
    command = Command("redrive", "orders_copy")
    assert answered(world, command, "orders_copy").message.endswith("0 of them refused again")
    assert {state for (state,) in world.dead_letters("state")} == {"redriven"}
    assert world.letters.open_lost("orders_copy", epoch=world.state("orders_copy").epoch, since=0) == 2
    assert answered(world, command, "orders_copy").message.endswith("0 of them refused again")
    assert {state for (state,) in world.dead_letters("state")} == {"redriven"}
    assert world.letters.open_lost("orders_copy", epoch=world.state("orders_copy").epoch, since=0) == 2
    replica = f"delta.`{world.folder / 'copy' / 'orders'}`"
    world.sql(f"UPDATE {replica} SET _cdf_guard = _cdf_guard + 100, name = 'of another writer' WHERE id = 5")
    assert answered(world, command, "orders_copy").message.endswith("1 with a higher guard")
    assert {state for (state,) in world.dead_letters("state")} == {"open"}


def test_an_append_sink_has_no_present_row(world):
    world.into_lines()
    world.create(rows=["(1, 'bad')"])
    assert world.run("orders_lines") is None
    answer = redrive(world, route="orders_lines")
    assert answer.state == "failed"
    assert "replay orders_lines --starting-version N --ending-version N" in answer.message


def test_discarded_letter_is_kept_and_its_key_stays_absent(started):
    assert redrive(started, letter_of(started, "3"), kind="discard").message == "1 discarded"
    assert started.dead_letters("key", "state") == [("3", "discarded"), ("4", "open")]
    assert started.board.snapshot().routes[0].dead_letters == 1
    assert set(started.delivered()) == {"1", "2"}
    started.trouble("tolerant")
    assert redrive(started).message.startswith("1 keys written")
    assert set(started.delivered()) == {"1", "2", "4"}


def test_redrive_opens_the_discarded_letter_of_a_present_row_refused_again(started):
    started.change("UPDATE {t} SET name = 'bad still' WHERE id = 3")
    assert started.run() is None
    (newer,) = [letter for letter, key, guard in started.dead_letters("id", "key", "guard") if key == "3"][1:]
    assert redrive(started, newer, kind="discard").message == "1 discarded"
    assert redrive(started).message.endswith("2 of them refused again")
    assert sorted(started.dead_letters("key", "state")) == [
        (key, state) for key in "34" for state in ("open", "redriven")
    ]


def test_unknown_letter_is_reported_and_nothing_changes(started):
    for answer in refused(started, "no-such-id"):
        assert "has no open dead letter of no-such-id" in answer.message
    assert started.dead_letters("key", "state") == [("3", "open"), ("4", "open")]


@pytest.mark.usefixtures("loaded")
def test_redrive_and_discard_fail_without_a_dead_letter(world):
    for answer in refused(world):
        assert "has no open dead letter" in answer.message


def refused(world, *letters):
    """Return the answers to a redrive and to a discard, both of which fail."""
    commands = [Command(kind, ROUTE, letters=letters) for kind in ("redrive", "discard")]
    world.run(command=commands)
    answers = [world.answer(command) for command in commands]
    assert [answer.state for answer in answers] == ["failed", "failed"]
    return answers


@pytest.mark.parametrize("named", [False, True], ids=["all", "named"])
@pytest.mark.parametrize("kind", ["redrive", "discard"])
def test_command_repeated_after_a_kill_before_its_answer_is_done(started, kind, named):
    started.trouble("tolerant")
    command = Command(kind, ROUTE, letters=(letter_of(started, "3"),) if named else ())
    done = {"redrive": "keys written", "discard": "discarded"}[kind]
    for message in (f"{1 if named else 2} {done}", "0 open (closed already)"):
        assert started.run(command=command) is None  # a kill leaves the command in the queue
        answer = started.answer(command)
        assert (answer.state, answer.message.startswith(message)) == ("done", True)


def test_letters_of_a_removed_table_can_be_discarded(started):
    shutil.rmtree(started.table)
    command = Command("discard", ROUTE, letters=())
    started.run(command=command)
    assert started.answer(command).message == "2 discarded"


def test_redrive_omits_columns_that_the_route_omits(started):
    started.environ["CDF_ROUTES__ORDERS_FILES__SCHEMA_CHANGES"] = "ignore"
    started.sql("ALTER TABLE {t} ADD COLUMNS (extra STRING)")
    started.change("UPDATE {t} SET extra = 'not configured'")
    started.trouble("tolerant")
    assert redrive(started).state == "done"
    assert {tuple(row) for row in started.delivered().values()} == {("id", "name")}
