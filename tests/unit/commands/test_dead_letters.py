"""``dead-letters list`` prints any text as it is, on a terminal of eighty columns."""

from __future__ import annotations

import pytest

from cdf_replicator.commands import dead_letters

ROUTE = "orders_of_all_countries_into_the_search_index"
CODE = "document_parsing_exception"


@pytest.fixture
def printed(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")

    def printed(*rows):
        dead_letters._write(list(rows), "table", "No open dead letters.")
        return capsys.readouterr().out

    return printed


def row(key, reason):
    return {
        "id": "3f2a9c01b7de" * 5,
        "route": ROUTE,
        "key": key,
        "commit_version": 12,
        "code": CODE,
        "reason": reason,
        "state": "open",
        "created_at": "2026-01-31 12:30:00.123456",
    }


def test_brackets_are_text(printed):
    text = printed(row("x[/b]y", "failed to parse field [price] of type [long]"))
    assert "key x[/b]y, version 12" in text
    assert "failed to parse field [price] of type [long]" in text


def test_control_characters_are_escaped(printed):
    assert "key a\\x1b[31m\\nb, version" in printed(row("a\x1b[31m\nb", "none"))


def test_route_and_code_are_whole_and_all_else_is_folded(printed):
    key = "j" * 100
    lines = printed(row(key, "long " * 30)).splitlines()
    assert max(map(len, lines)) <= 80
    words = " ".join(lines).split()
    assert ROUTE in words
    assert CODE in words
    assert "".join(line.strip() for line in lines).count("j") == 100


def test_dead_letter_without_key_is_labelled(printed):
    assert "no key, version 12" in printed(row(None, "a key column is null"))


def test_absence_of_dead_letters_is_reported(printed):
    assert printed() == "No open dead letters.\n"
