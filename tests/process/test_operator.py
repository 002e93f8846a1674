"""What an operator does by hand: look at a feed, turn it on, rebuild a target that a kill left half swept."""

from __future__ import annotations

import json
import shlex
import subprocess
from argparse import ArgumentParser
from typing import TYPE_CHECKING

import httpx
import pytest
import redis

from deploy.readme import ROOT
from tests.support.reading import entries
from tests.support.service import COMMAND, Ended, Service, command, environment
from tests.support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from deploy.servers import Redis
    from tests.process.conftest import Source

ROWS = 10_000
TOKEN = "of-eighteen-letters"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("operator")


@pytest.fixture(scope="module")
def past(folder: Path, new_source: Callable[..., Source]) -> Source:
    """Versions 0 (created), 1 (10,000 inserts), 2 (one update), 3 (half of them deleted)."""
    source = new_source(folder, "past", ROWS)
    source.sql("UPDATE {} SET amount = 1 WHERE id = 7")
    source.sql(f"DELETE FROM {{}} WHERE id >= {ROWS // 2}")
    return source


def test_changes_prints_data_on_stdout_and_its_log_on_stderr(folder: Path, past: Source):
    """For a path nothing needs to be configured; for a slug, neither state path nor sinks."""
    known = environment(folder, STATE_PATH=folder / "none", TABLES__PAST__PATH=past.path, TABLES__PAST__KEYS="id")
    bare = {name: value for name, value in known.items() if "STATE" not in name and "TABLES" not in name}

    of_key = command(known, "changes", "past", "--from", "0", "--to", "2", "--key", "7", "--format", "json")
    assert of_key.code == 0, of_key.log
    rows = [json.loads(line) for line in of_key.output.splitlines()]
    assert [(row["_commit_version"], row["_change_type"], row["amount"]) for row in rows] == [
        (1, "insert", 70),
        (2, "update_preimage", 70),
        (2, "update_postimage", 1),
    ]

    by_time = command(
        *(known, "changes", str(past.path), "--from-timestamp", "2000-01-01", "--to-timestamp", "2100-01-01"),
        *("--keys", "id", "--key", "7", "--limit", "2", "--format", "json"),
    )
    assert by_time.code == 0, by_time.log
    assert [json.loads(line)["amount"] for line in by_time.output.splitlines()] == [70, 70]

    absent = command(known, "changes", "past", "--from", "9")
    assert (absent.code, absent.output) == (1, "")
    assert "changes of versions 0 to 3 are available" in absent.log

    words = [COMMAND, "changes", str(past.path), "--from", "1", "--format", "csv"]
    with subprocess.Popen(words, env=bare, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as cut:
        assert cut.stdout
        assert cut.stderr
        assert cut.stdout.readline().startswith("id,name,amount,_change_type")
        cut.stdout.close()
        log = cut.stderr.read()
    assert cut.returncode == 0, log
    assert "Broken" not in log
    assert "Traceback" not in log
    assert not (folder / "none").exists()


def test_enable_says_from_which_version_the_feed_is_valid(folder: Path, past: Source):
    path = folder / "plain"
    past.spark.sql(f"CREATE TABLE delta.`{path}` (id BIGINT) USING delta")
    bare = environment(folder)
    first = command(bare, "enable", str(path))
    assert first.code == 0, first.log
    assert f"{path}): the change feed is on from version 1 on. Changes made before are not in it" in first.output


def test_a_resync_killed_in_its_sweep_is_finished_and_mends_what_somebody_else_wrote(
    folder: Path, past: Source, redis_server: Redis, sinks: Callable[[Path], dict[str, object]]
):
    given = environment(
        folder,
        **{name: value for name, value in sinks(folder).items() if "CACHE" in name},
        TABLES__PAST__PATH=past.path,
        TABLES__PAST__KEYS="id",
        TABLES__PAST__SINKS="cache",
    )
    with Service(given) as service, redis.Redis.from_url(redis_server.url) as client:
        service.started()
        service.wait_delivered("past_cache", past.version)
        client.mset({f"past:{number}": "theirs" for number in range(100_000, 160_000)})
        client.set("past:1", "theirs")

        tried = command(given, "resync", "past_cache", "--dry-run")
        assert tried.code == 0, tried.log
        assert "target  65000 entries, of which at least 60000 (92.3%) would be removed" in tried.output
        refused = command(given, "resync", "past_cache")
        assert refused.code == 1
        assert "would remove 60000 of the target's 65000 entries (92.3%), more than 10.0%" in refused.log
        assert "resync past_cache --yes" in refused.log
        assert client.get("past:159999") == b"theirs"
        assert client.get("past:1") != b"theirs", "the snapshot is loaded"

        words = [COMMAND, "resync", "past_cache", "--yes"]
        with subprocess.Popen(words, env=given, stderr=subprocess.DEVNULL):  # ends as the service has, or takes over
            until(lambda: client.exists("past:100000", "past:159999", "past:130000") < 3, 120, service.log.read_text)
            service.kill()

    last = command(given, "run", "--once")
    assert last.code == 0, last.log
    assert entries(redis_server.url, "past:") == past.rows


def test_a_route_is_paused_with_and_without_a_service_and_by_http(
    folder: Path, past: Source, redis_server: Redis, sinks: Callable[[Path], dict[str, object]]
):
    given = environment(
        folder,
        STATE_PATH=folder / "paused",
        HTTP__TOKEN=TOKEN,
        TABLES__REST__PATH=past.path,
        TABLES__REST__KEYS="id",
        TABLES__REST__SINKS="cache",
        **{name: value for name, value in sinks(folder).items() if "CACHE" in name},
    )
    told = command(given, "pause", "rest_cache")
    assert told.code == 0, told.log
    with Service(given) as service:
        service.started()
        service.wait_state("rest_cache", "paused")
        assert service.get("/readyz").status_code == 200, "a paused route waits for nobody"
        assert entries(redis_server.url, "rest:") == {}
        resumed = command(given, "resume", "rest")
        assert resumed.code == 0, resumed.log
        service.wait_delivered("rest_cache", past.version)
        assert entries(redis_server.url, "rest:") == past.rows

        pause, replay, follow = documented(
            {"http://replicator:9102": service.url, "orders_search": "rest_cache", "$TOKEN": TOKEN, "12}": "1}"}
        )
        asked = send(replay)
        assert asked.status_code == 202, asked.text
        following = [word.replace("6f0c…", asked.json()["id"]) for word in follow]
        until(lambda: send(following).json()["state"] == "done", 120, lambda: send(following).text)
        assert send(pause).status_code == 202
        service.wait_state("rest_cache", "paused")
        assert httpx.post(f"{service.url}/routes/rest_cache/resume", trust_env=False).status_code == 401

        control = ["pause asked for", "replay asked for", "resume asked for"]
        events = [event["what"] for event in service.status()["events"] if event["route"] == "rest_cache"]
        assert [what for what in events if what in control] == control, "newest first"
        assert service.end() == 0
        ended = Ended(0, "", service.log.read_text())
        said = [entry["message"] for entry in ended.entries if entry.get("route") == "rest_cache"]
        assert [what for what in reversed(said) if what in control] == control
        assert TOKEN not in ended.log


def documented(here: dict[str, str]) -> list[list[str]]:
    """The words of each curl line of the page, with what is so ``here`` in place of what the page says."""
    text = (ROOT / "docs/operations.md").read_text().replace("\\\n", "")
    for theirs, ours in here.items():
        text = text.replace(theirs, ours)
    return [shlex.split(line)[2:] for line in text.splitlines() if line.startswith("    $ curl ")]


def send(words: list[str]) -> httpx.Response:
    """What curl does with these words."""
    curl = ArgumentParser()
    curl.add_argument("url")
    curl.add_argument("-X", default="GET")
    curl.add_argument("-H", action="append")
    curl.add_argument("-d")
    given = curl.parse_args(words)
    headers = dict(header.split(": ", 1) for header in given.H)
    return httpx.request(given.X, given.url, headers=headers, content=given.d, timeout=10, trust_env=False)
