"""Rows that a sink refused: found, looked at, written again and given up, by the commands that the docs name."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tests.support.reading import entries
from tests.support.service import command, environment

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from deploy.servers import Redis
    from tests.process.conftest import Source

MOST_BYTES = 1000
REFUSED = (3, 5, 8)


def test_letters_are_listed_shown_redriven_and_discarded(
    tmp_path: Path, new_source: Callable[..., Source], redis_server: Redis
):
    source = new_source(tmp_path, "letters")
    source.sql(f"UPDATE {{}} SET name = repeat('x', {MOST_BYTES}) WHERE id IN {REFUSED}")
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
    assert command(given, "run", "--once").code == 0

    def listed(*more: str) -> dict[str, dict[str, Any]]:
        told = command(given, "dead-letters", "list", "letters_cache", "--limit", "10", "--format", "json", *more)
        assert told.code == 0, told.log
        return {letter["key"]: letter for letter in map(json.loads, told.output.splitlines())}

    open_ = listed()
    assert open_.keys() == set(map(str, REFUSED))
    shown = command(given, "dead-letters", "show", open_["5"]["id"][:12])
    assert json.loads(shown.output)["row"] == {"id": 5, "name": "x" * MOST_BYTES, "amount": 50}
    assert "MAX_VALUE_BYTES" in json.loads(shown.output)["reason"]

    source.sql("UPDATE {} SET name = 'short' WHERE id = 3")
    given_up = command(given, "dead-letters", "discard", "letters_cache", open_["5"]["id"], "--yes")
    assert given_up.code == 0, given_up.log
    written = command(given, "dead-letters", "redrive", "letters_cache", "--yes")
    assert written.code == 0, written.log
    assert listed().keys() == {"8"}
    every = command(given, "dead-letters", "list", "--all", "--format", "json")
    states = sorted((letter["key"], letter["state"]) for letter in map(json.loads, every.output.splitlines()))
    assert states == [("3", "superseded"), ("5", "discarded"), ("8", "open"), ("8", "redriven")]
    shown_rows = {key: row for key, row in source.rows.items() if key not in ("5", "8")}
    assert entries(redis_server.url, "letters:") == shown_rows
