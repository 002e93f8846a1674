"""Bad input: each gets an exit code and one clear message with the next step, no checkpoint moves, and the step helps."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import httpx
import pytest
import redis

from deploy.servers import Elasticsearch, Redis
from tests.support.reading import documents, entries
from tests.support.service import Ended, command, environment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.process.conftest import Source

ROWS = 5
BEFORE_SPARK_SECONDS = 30
SECRET = "s3cret"


# Configuration: told before Spark starts


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
    ("wrong", "told"),
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
def test_a_wrong_configuration_ends_the_run_before_spark_starts(tmp_path: Path, wrong: dict[str, str], told: list[str]):
    ended = command(minimal(tmp_path, **wrong), "run", "--once", within=BEFORE_SPARK_SECONDS)

    assert ended.code == 78, ended.log
    assert [words for words in told if words not in ended.log] == []
    assert "Traceback" not in ended.log
    assert not (tmp_path / "state").exists()


def test_a_state_path_that_can_not_be_written_is_named(tmp_path: Path):
    (tmp_path / "file").touch()

    given = minimal(tmp_path, STATE_PATH=tmp_path / "file" / "state")
    ended = command(given, "run", "--once", within=BEFORE_SPARK_SECONDS)

    assert ended.code == 78, ended.log
    (entry,) = ended.entries
    assert f"CDF_STATE_PATH={tmp_path}/file/state is not writable" in entry["message"]
    assert "mount a volume there or name another folder" in entry["message"]


def test_a_state_path_of_a_newer_version_is_left_alone(tmp_path: Path):
    (tmp_path / "state").mkdir()
    format_file = tmp_path / "state" / "format.json"
    format_file.write_text(json.dumps({"format": 99, "owner": "newer"}))

    ended = command(minimal(tmp_path), "run", "--once", within=BEFORE_SPARK_SECONDS)

    assert ended.code == 78, ended.log
    (entry,) = ended.entries
    assert "state format 99" in entry["message"]
    assert "run that version" in entry["message"]
    assert json.loads(format_file.read_text())["owner"] == "newer"


# Tables and sinks: one run meets them all, so that Spark starts once


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bad")


@pytest.fixture(scope="module")
def guarded() -> Iterator[tuple[Elasticsearch, Redis]]:
    """Servers that ask for a password."""
    with Redis.start(config={"requirepass": SECRET}) as cache, Elasticsearch.start(password=SECRET) as search:
        yield search, cache


@pytest.fixture(scope="module")
def tables(folder: Path, new_source: Callable[..., Source]) -> dict[str, Source]:
    names = ("nofeed", "nokey", "nulls", "doubled", "locked", "mapped", "squatted", "away")
    made = {name: new_source(folder, name, ROWS) for name in names}
    made["nofeed"].sql("ALTER TABLE {} SET TBLPROPERTIES (delta.enableChangeDataFeed = false)")
    made["nulls"].sql("INSERT INTO {} VALUES (NULL, 'nobody', 0)")
    made["doubled"].sql("INSERT INTO {} SELECT id, 'again', 0 FROM range(2)")
    return made


@pytest.fixture(scope="module")
def given(
    folder: Path,
    tables: dict[str, Source],
    elasticsearch: Elasticsearch,
    redis_server: Redis,
    guarded: tuple[Elasticsearch, Redis],
    sinks: Callable[[Path], dict[str, object]],
) -> dict[str, object]:
    """Wrong in every way; see ``corrected``."""
    search, cache = guarded
    mapping = {"mappings": {"properties": {"amount": {"type": "boolean"}}}}
    httpx.put(f"{elasticsearch.url}/mapped", json=mapping, trust_env=False).raise_for_status()
    with redis.Redis.from_url(redis_server.url) as client:
        client.rpush("squatted:3", "somebody else's")
    variables: dict[str, object] = dict(sinks(folder))
    variables["TABLES__DOUBLED__ON_DUPLICATE_KEYS"] = "halt"
    for name in (*tables, "missing"):
        variables |= {
            f"TABLES__{name.upper()}__PATH": folder / name,
            f"TABLES__{name.upper()}__KEYS": "id",
            f"TABLES__{name.upper()}__SINKS": "cache",
        }
    return variables | {
        "TABLES__NOKEY__KEYS": "ident",
        "TABLES__NULLS__SINKS": "cache,search",
        "TABLES__LOCKED__SINKS": "guarded_search,guarded_cache",
        "TABLES__MAPPED__SINKS": "search",
        "TABLES__AWAY__SINKS": "away",
        "SINKS__GUARDED_SEARCH__TYPE": "elasticsearch",
        "SINKS__GUARDED_SEARCH__HOSTS": search.url,
        "SINKS__GUARDED_SEARCH__USERNAME": "elastic",
        "SINKS__GUARDED_SEARCH__PASSWORD": "mistaken",
        "SINKS__GUARDED_CACHE__TYPE": "redis",
        "SINKS__GUARDED_CACHE__URL": f"redis://127.0.0.1:{cache.port}/0",
        "SINKS__AWAY__TYPE": "redis",
        "SINKS__AWAY__URL": "redis://127.0.0.1:1/0",
    }


@pytest.fixture(scope="module")
def refused(folder: Path, given: dict[str, object]) -> Ended:
    """A run over all that an operator has to correct."""
    names = ("nofeed", "nokey", "nulls", "doubled", "locked", "mapped", "squatted")
    words = [word for name in names for word in ("--table", name)]
    return command(environment(folder, **given), "run", "--once", *words)


@pytest.mark.parametrize(
    ("route", "reason", "what", "next_step"),
    [
        ("nofeed_cache", "change_feed_off", "{folder}/nofeed. has no change feed", "ALTER TABLE delta.`.*/nofeed` SET"),
        ("nokey_cache", "bad_expression", "no column ident; it has id, name, amount", "Correct KEYS.*restart"),
        (
            "doubled_cache",
            "duplicate_keys",
            r"several rows of 2 keys: 0 \(2 rows\), 1 \(2 rows\)",
            "resync doubled_cache",
        ),
        ("locked_guarded_search", "sink_refused", "refused the credentials", "Set API_KEY, or USERNAME and PASSWORD"),
        ("locked_guarded_cache", "sink_refused", "refuses this user", "Check username and password"),
        (
            "mapped_search",
            "sink_refused",
            "index 'mapped' does not take the route: 'amount' is mapped as boolean",
            "name another index",
        ),
    ],
)
def test_what_an_operator_must_correct_halts_its_route(
    refused: Ended, folder: Path, route: str, reason: str, what: str, next_step: str
):
    assert refused.code == 1
    (entry,) = [e for e in refused.entries if e["message"] == "route failed" and e["route"] == route]
    assert entry["reason"] == reason
    assert re.search(what.format(folder=folder), entry["what"])
    assert re.search(next_step, entry["next_step"])
    assert refused.entry(route=route, state="halted")
    assert not list((folder / "state" / "routes").glob(f"{route}/checkpoints/*/commits/*"))


def test_nothing_of_it_is_told_with_a_traceback_or_a_secret(refused: Ended):
    assert "Traceback" not in refused.log
    assert "\tat " not in refused.log
    assert "mistaken" not in refused.log


def test_a_row_without_a_key_becomes_a_dead_letter_and_the_others_are_delivered(
    refused: Ended, folder: Path, tables: dict[str, Source], elasticsearch: Elasticsearch, redis_server: Redis
):
    expected = {key: row for key, row in tables["nulls"].rows.items() if row["id"] is not None}
    assert len(expected) == ROWS
    assert entries(redis_server.url, "nulls:") == expected
    assert documents(elasticsearch.url, "nulls") == expected
    letters = dead_letters(folder, tables["nulls"]).where("table = 'nulls'")
    assert {(row["route"], row["key"], row["code"], row["state"]) for row in letters.collect()} == {
        ("nulls_cache", None, "null_key", "open"),
        ("nulls_search", None, "null_key", "open"),
    }
    assert {json.loads(row["row"])["name"] for row in letters.collect()} == {"nobody"}


def test_a_redis_key_of_another_type_is_left_alone_and_its_row_becomes_a_dead_letter(
    refused: Ended, folder: Path, tables: dict[str, Source], redis_server: Redis
):
    expected = tables["squatted"].rows
    del expected["3"]
    assert entries(redis_server.url, "squatted:") == expected
    with redis.Redis.from_url(redis_server.url) as client:
        assert client.lrange("squatted:3", 0, -1) == [b"somebody else's"]
    (letter,) = dead_letters(folder, tables["squatted"]).where("table = 'squatted'").collect()
    assert (letter["key"], letter["code"]) == ("3", "wrong_type")
    assert "something other than a string" in letter["reason"]


def test_what_is_away_ends_a_run_once_with_the_code_for_later(folder: Path, given: dict[str, object]):
    ended = command(environment(folder, **given), "run", "--once", "--table", "missing", "--table", "away")

    assert ended.code == 75, ended.log
    missing = ended.entry(message="route failed", route="missing_cache")
    assert missing["reason"] == "table_missing"
    assert str(folder / "missing") in missing["what"]
    assert "Create it, or correct its PATH or NAME" in missing["next_step"]
    away = ended.entry(message="route failed", route="away_away")
    assert away["reason"] == "unreachable"
    assert "127.0.0.1:1" in away["what"]
    assert "Traceback" not in ended.log


def test_once_corrected_as_told_everything_is_delivered(
    refused: Ended,
    folder: Path,
    given: dict[str, object],
    tables: dict[str, Source],
    elasticsearch: Elasticsearch,
    redis_server: Redis,
    guarded: tuple[Elasticsearch, Redis],
    new_source: Callable[..., Source],
):
    tables["nofeed"].sql("ALTER TABLE {} SET TBLPROPERTIES (delta.enableChangeDataFeed = true)")
    tables["doubled"].sql("DELETE FROM {} WHERE name = 'again'")
    new_source(folder, "missing", ROWS)
    corrected = environment(
        folder,
        **{
            **given,
            "TABLES__NOKEY__KEYS": "id",
            "SINKS__GUARDED_SEARCH__PASSWORD": SECRET,
            "SINKS__GUARDED_CACHE__PASSWORD": SECRET,
            "ROUTES__MAPPED_SEARCH__INDEX": "mapped-anew",
            "SINKS__AWAY__URL": redis_server.url,
        },
    )
    resync = command(corrected, "resync", "doubled_cache", "--yes")
    assert resync.code == 0, resync.log

    ended = command(corrected, "run", "--once")

    assert ended.code == 0, ended.log
    for name in ("nofeed", "nokey", "doubled", "away"):
        assert entries(redis_server.url, f"{name}:") == tables[name].rows
    assert entries(redis_server.url, "missing:").keys() == {str(number) for number in range(ROWS)}
    assert documents(elasticsearch.url, "mapped-anew") == tables["mapped"].rows
    assert entries(guarded[1].url, "locked:") == tables["locked"].rows


def dead_letters(folder: Path, source: Source):
    return source.spark.read.format("delta").load(str(folder / "state" / "dead_letters"))
