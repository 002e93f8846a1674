"""Bad input: each gets an exit code and one clear message with the next step, no checkpoint moves, and the step helps."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import httpx
import pytest
import redis

from deploy.local.servers import Redis
from tests.support import light_table
from tests.support.reading import documents, entries
from tests.support.service import Ended, environment
from tests.support.source import Source

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from deploy.local.servers import Elasticsearch

    Here = Callable[..., Ended]

ROWS = 5
SECRET = "s3cret"


# Configuration: errors are reported before Spark starts


def minimal(folder: Path, **more: object) -> dict[str, str]:
    given = {
        "TABLES__ORDERS__PATH": folder / "orders",
        "TABLES__ORDERS__KEYS": "id",
        "TABLES__ORDERS__SINKS": "cache",
        "SINKS__CACHE__TYPE": "redis",
        "SINKS__CACHE__URL": "redis://127.0.0.1:1/0",
    }
    return environment(folder, **{**given, **more})


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        ({"TABLES__ORDERS__KEYZ": "id"}, ["CDF_TABLES__ORDERS__KEYZ", "did you mean CDF_TABLES__ORDERS__KEYS?"]),
        ({"TRIGGER_SECONDS": "soon"}, ["CDF_TRIGGER_SECONDS", "'soon'", "a number"]),
        (
            {"ROUTES__AGAIN__TABLE": "orders", "ROUTES__AGAIN__SINK": "cache"},
            ["orders_cache", "again", "KEY_TEMPLATE"],
        ),
    ],
    ids=["an unknown option", "a malformed number", "two routes to one target"],
)
def test_a_wrong_configuration_ends_the_run_before_spark_starts(
    tmp_path: Path, here: Here, wrong: dict[str, str], expected: list[str]
):
    ended = here(minimal(tmp_path, **wrong), "run", "--once")

    assert ended.code == 78, ended.log
    assert [words for words in expected if words not in ended.log] == []
    assert "Traceback" not in ended.log
    assert "spark started" not in ended.log
    assert not (tmp_path / "state").exists()


def test_unwritable_state_path_is_named(tmp_path: Path, here: Here):
    (tmp_path / "file").touch()

    ended = here(minimal(tmp_path, STATE_PATH=tmp_path / "file" / "state"), "run", "--once")

    assert ended.code == 78, ended.log
    (entry,) = ended.entries
    assert f"CDF_STATE_PATH={tmp_path}/file/state is not writable" in entry["message"]
    assert "mount a volume there or name another folder" in entry["message"]


def test_state_path_of_a_newer_version_is_unchanged(tmp_path: Path, here: Here):
    (tmp_path / "state").mkdir()
    format_file = tmp_path / "state" / "format.json"
    format_file.write_text(json.dumps({"format": 99, "owner": "newer"}))

    ended = here(minimal(tmp_path), "run", "--once")

    assert ended.code == 78, ended.log
    (entry,) = ended.entries
    assert "state format 99" in entry["message"]
    assert "run that version" in entry["message"]
    assert json.loads(format_file.read_text())["owner"] == "newer"


# Tables and sinks: one run meets them all


@pytest.fixture(scope="module")
def guarded() -> Iterator[Redis]:
    with Redis.start(config={"requirepass": SECRET}) as server:
        yield server


def test_wrong_input_halts_its_route_and_correction_ends_the_halt(
    spark: SparkSession, tmp_path: Path, elasticsearch: Elasticsearch, redis_server: Redis, guarded: Redis, here: Here
):
    tables = {
        name: Source.created(lambda: spark, tmp_path / name, ROWS) for name in ("nokey", "locked", "mapped", "squatted")
    }
    mapping = {"mappings": {"properties": {"amount": {"type": "boolean"}}}}
    httpx.put(f"{elasticsearch.url}/mapped", json=mapping, trust_env=False).raise_for_status()
    with redis.Redis.from_url(redis_server.url) as client:
        client.rpush("squatted:3", "not a row")
    given = wrong(tmp_path, elasticsearch, redis_server, guarded)

    refused = here(environment(tmp_path, **given), "run", "--once", *of_tables(*tables))

    assert refused.code == 1
    halted(refused, tmp_path, "nokey_cache", "bad_expression", "no column ident; it has id, name", "KEYS.*restart")
    halted(refused, tmp_path, "locked_guarded", "sink_refused", "refuses this user", "Check username and password")
    conflict = "index 'mapped' does not take the route: 'amount' is mapped as boolean"
    halted(refused, tmp_path, "mapped_search", "sink_refused", conflict, "name another index")
    assert [words for words in ("Traceback", "\tat ", "mistaken") if words in refused.log] == []
    left_alone(redis_server, tables["squatted"], tmp_path)

    corrected = given | {
        "TABLES__NOKEY__KEYS": "id",
        "SINKS__GUARDED__PASSWORD": SECRET,
        "ROUTES__MAPPED_SEARCH__INDEX": "mapped-anew",
    }
    ended = here(environment(tmp_path, **corrected), "run", "--once", *of_tables("nokey", "locked", "mapped"))

    assert ended.code == 0, ended.log
    assert entries(redis_server.url, "nokey:") == tables["nokey"].rows
    assert entries(guarded.url, "locked:") == tables["locked"].rows
    assert documents(elasticsearch.url, "mapped-anew") == tables["mapped"].rows


def test_unreachable_system_ends_run_once_with_the_retry_exit_code(
    spark: SparkSession, tmp_path: Path, elasticsearch: Elasticsearch, redis_server: Redis, guarded: Redis, here: Here
):
    away = Source.created(lambda: spark, tmp_path / "away", ROWS)
    given = wrong(tmp_path, elasticsearch, redis_server, guarded)

    ended = here(environment(tmp_path, **given), "run", "--once", "--table", "missing", "--table", "away")

    assert ended.code == 75, ended.log
    entry = ended.entry(message="route failed", route="missing_cache")
    assert entry["reason"] == "table_missing"
    assert str(tmp_path / "missing") in entry["what"]
    assert "Create it, or correct its PATH or NAME" in entry["next_step"]
    entry = ended.entry(message="route failed", route="away_away")
    assert entry["reason"] == "unreachable"
    assert "127.0.0.1:1" in entry["what"]
    assert "Traceback" not in ended.log

    missing = Source.created(lambda: spark, tmp_path / "missing", ROWS)
    corrected = environment(tmp_path, **given | {"SINKS__AWAY__URL": redis_server.url})
    ended = here(corrected, "run", "--once", "--table", "missing", "--table", "away")

    assert ended.code == 0, ended.log
    assert entries(redis_server.url, "missing:") == missing.rows
    assert entries(redis_server.url, "away:") == away.rows


def wrong(folder: Path, elasticsearch: Elasticsearch, cache: Redis, guarded: Redis) -> dict[str, object]:
    """Return the configuration of each table of these tests; the mistakes are in the second half."""
    slugs = ("nokey", "locked", "mapped", "squatted", "missing", "away")
    paths = {f"TABLES__{slug.upper()}__PATH": folder / slug for slug in slugs}
    keys = {f"TABLES__{slug.upper()}__KEYS": "id" for slug in slugs}
    sinks = {f"TABLES__{slug.upper()}__SINKS": "cache" for slug in slugs}
    return {
        **paths,
        **keys,
        **sinks,
        "TABLES__LOCKED__SINKS": "guarded",
        "TABLES__MAPPED__SINKS": "search",
        "TABLES__AWAY__SINKS": "away",
        "SINKS__CACHE__TYPE": "redis",
        "SINKS__CACHE__URL": cache.url,
        "SINKS__SEARCH__TYPE": "elasticsearch",
        "SINKS__SEARCH__HOSTS": elasticsearch.url,
        "SINKS__GUARDED__TYPE": "redis",
        "SINKS__GUARDED__URL": f"redis://127.0.0.1:{guarded.port}/0",
        "SINKS__AWAY__TYPE": "redis",
        "TABLES__NOKEY__KEYS": "ident",
        "SINKS__GUARDED__PASSWORD": "mistaken",
        "SINKS__AWAY__URL": "redis://127.0.0.1:1/0",
    }


def of_tables(*names: str) -> list[str]:
    return [word for name in names for word in ("--table", name)]


def halted(ended: Ended, folder: Path, route: str, reason: str, what: str, next_step: str) -> None:
    """Assert the reported failure of the route, and that it has committed nothing."""
    entry = ended.entry(message="route failed", route=route)
    assert entry["reason"] == reason
    assert re.search(what, entry["what"])
    assert re.search(next_step, entry["next_step"])
    assert ended.entry(route=route, state="halted")
    assert not list((folder / "state" / "routes").glob(f"{route}/checkpoints/*/commits/*"))


def left_alone(server: Redis, squatted: Source, folder: Path) -> None:
    """Assert that a Redis key of another type is as it was, that its row is a dead letter, and the others are delivered."""
    assert entries(server.url, "squatted:") == {key: row for key, row in squatted.rows.items() if key != "3"}
    with redis.Redis.from_url(server.url) as client:
        assert client.lrange("squatted:3", 0, -1) == [b"not a row"]
    letters = light_table.read(str(folder / "state" / "dead_letters"), ("table", "key", "code", "reason"))
    assert letters is not None
    (letter,) = letters
    assert (letter["table"], letter["key"], letter["code"]) == ("squatted", "3", "wrong_type")
    assert "something other than a string" in letter["reason"]
