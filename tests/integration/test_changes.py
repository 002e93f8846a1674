"""``changes`` prints the feed as ``table_changes`` gives it; ``enable`` turns it on and says from which version it holds."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace

import pytest

from cdf_replicator.commands import session
from cdf_replicator.commands.changes import write
from cdf_replicator.commands.enable import enabled
from cdf_replicator.errors.exceptions import RouteHaltError
from cdf_replicator.queries.changes import changes
from cdf_replicator.queries.execution import describe_error
from cdf_replicator.queries.query import ReadChanges
from cdf_replicator.source.table import SourceTable

FEED = ("_change_type", "_commit_version", "_commit_timestamp")


def written(table, **wanted):
    out, query = io.StringIO(), ReadChanges(table=table.source.slug, **wanted)
    write(changes(table, query), query.format, out)
    return out.getvalue()


def objects(table, **wanted):
    return [json.loads(line) for line in written(table, format="json", **wanted).splitlines()]


def refused(table, **wanted):
    with pytest.raises(RouteHaltError) as caught:
        written(table, **wanted)
    assert caught.value.decision.remedy
    return caught.value.decision.message


def test_printed_feed_equals_table_changes(world):
    world.create("id bigint, name string, tags array<string>", rows=["(1, 'a', null)", "(2, '', array('x,y'))"])
    world.change("UPDATE {t} SET name = 'say \"hi\"' WHERE id = 1")
    world.change("UPDATE {t} SET id = 20 WHERE id = 2")
    world.change("DELETE FROM {t} WHERE id = 1")
    table = world.source()
    asked_sql = f"SELECT * FROM table_changes_by_path('{world.table}', 0)"
    given = {tuple(map(repr, row[:3])) + row[3:5] for row in world.spark.sql(asked_sql).collect()}

    rows = objects(table, first=0, keys=("id",))
    assert [row["_commit_version"] for row in rows] == [1, 1, 2, 2, 3, 3, 4], "ordered by version"
    assert [row["_change_type"] for row in rows if row["_commit_version"] == 2] == [
        "update_preimage",
        "update_postimage",
    ]
    assert list(rows[0]) == ["id", "name", "tags", *FEED]
    assert {(*(repr(row[name]) for name in ("id", "name", "tags")), *list(row.values())[3:5]) for row in rows} == given
    assert rows[0]["_commit_timestamp"].endswith("Z")

    assert [row["_commit_version"] for row in objects(table, first=2, last=3)] == [2, 2, 3, 3]
    assert len(objects(table, first=0, limit=3)) == 3
    assert [(row["_change_type"], row["name"]) for row in objects(table, first=0, keys=("id",), key="1")] == [
        ("insert", "a"),
        ("update_preimage", "a"),
        ("update_postimage", 'say "hi"'),
        ("delete", 'say "hi"'),
    ]

    text = written(table, first=0, keys=("ID",), format="csv")
    parsed = list(csv.reader(io.StringIO(text)))
    assert parsed[0] == ["id", "name", "tags", *FEED]
    assert [line[:3] for line in parsed[1:5]] == [
        ["1", "a", ""],
        ["2", "", '["x,y"]'],
        ["1", "a", ""],
        ["1", 'say "hi"', ""],
    ]
    assert '2,"","[' in text, "an empty text differs from a null"

    lines = written(table, first=3, keys=("id",)).splitlines()
    assert lines[0].split() == ["id", "name", "tags", *FEED]
    assert lines[2].split()[:4] == ["2", '["x,y"]', "update_preimage", "3"]
    assert {len(line.rstrip()) for line in lines[1:2]} == {max(map(len, lines))}
    assert written(table, first=0, keys=("id",), key="99").count("\n") == 2, "headings, and no row"

    assert "changes of versions 0 to 4 are available" in refused(table, first=5)
    assert "Version 9 of table orders" in refused(table, first=1, last=9)
    assert "later than its newest commit" in refused(table, first="2100-01-01")
    assert "earlier than its oldest commit" in refused(table, first=0, last="2000-01-01")
    assert "has no column nope; it has id, name, tags" in refused(table, first=0, keys=("nope",))
    assert len(objects(table, first="2000-01-01", last="2100-01-01T00:00:00+14:00")) == 7


def test_control_characters_of_rows_are_escaped_in_a_table():
    write(iter([["id", "name"], ["1", "\x1b[2J"]]), "table", out := io.StringIO())
    assert out.getvalue().splitlines()[-1].split() == ["1", r"\x1b[2J"]


def test_feed_enabled_twice_is_valid_from_the_last_enabling(world):
    world.create(rows=["(1, 'a')"], delta__enableChangeDataFeed="false")
    assert "is off" in refused(world.source(), first=0)
    assert "the change feed is on from version 2 on" in enabled(world.source())
    world.insert("(2, 'b')")
    assert "is on since version 2. Nothing was changed." in enabled(world.source())
    assert world.version() == 3
    assert "changes of versions 2 to 3 are available" in refused(world.source(), first=1)
    assert [row["id"] for row in objects(world.source(), first=2)] == [2]

    world.sql("ALTER TABLE {t} SET TBLPROPERTIES (delta.enableChangeDataFeed = false)")
    world.insert("(3, 'c')")
    world.sql("ALTER TABLE {t} SET TBLPROPERTIES (delta.enableChangeDataFeed = true)")
    world.sql("ALTER TABLE {t} ADD COLUMN price int")
    assert "is on since version 6. " in enabled(world.source())
    world.insert("(4, 'd', 4)")
    world.forget_log_before(world.version())
    assert "is on since version 8. " in enabled(world.source()), "the log starts at version 8"


def test_feed_that_cannot_be_enabled_or_read_reports_the_reason(world):
    world.create("id bigint, _change_type string", delta__enableChangeDataFeed="false")
    with pytest.raises(Exception, match="DELTA_TABLE_ALREADY_CONTAINS_CDC_COLUMNS") as caught:
        enabled(world.source())
    what, next_step = describe_error(caught.value)
    assert "DELTA_TABLE_ALREADY_CONTAINS_CDC_COLUMNS" in what
    assert "rename the column" in next_step

    other = world.folder / "mapped"
    world.table = str(other)
    world.create(rows=["(1, 'a')"], delta__columnMapping__mode="name")
    world.sql("ALTER TABLE {t} RENAME COLUMN name TO title")
    world.insert("(2, 'b')")
    table = SourceTable(world.spark, replace(world.source().source, path=str(other)))
    with pytest.raises(Exception, match="DELTA_CHANGE_DATA_FEED_INCOMPATIBLE") as caught:
        written(table, first=0)
    assert "read the versions before that commit" in describe_error(caught.value)[1]
    assert [row["title"] for row in objects(table, first=3)] == ["b"]

    with pytest.raises(Exception) as caught:
        SourceTable(world.spark, session.source_named("no_such_table", {}))
    assert "There is no Delta table of that name" in describe_error(caught.value)[1]
