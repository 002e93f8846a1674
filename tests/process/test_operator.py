"""An operator works beside a service: prints a feed, rebuilds a target that a kill left half swept, pauses a route."""

from __future__ import annotations

import shlex
import subprocess
from argparse import ArgumentParser
from typing import TYPE_CHECKING

import httpx
import pytest
import redis

from docs.generate.readme import ROOT
from tests.chaos.proxy import Proxy
from tests.support.reading import entries
from tests.support.service import COMMAND, Ended, Service, command, environment
from tests.support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from deploy.local.servers import Redis
    from tests.support.source import Source

ROWS = 2000
FOREIGN = [f"past:{number}" for number in range(ROWS, ROWS + 20_000)]
"""Entries that the table has no rows for."""
TOKEN = "of-eighteen-letters"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("operator")


@pytest.fixture(scope="module")
def past(folder: Path, new_source: Callable[..., Source]) -> Source:
    """Versions 0 (created), 1 (2000 inserts), 2 (one update), 3 (half of them deleted)."""
    source = new_source(folder, "past", ROWS)
    source.change("UPDATE {} SET amount = 1 WHERE id = 7")
    source.change(f"DELETE FROM {{}} WHERE id >= {ROWS // 2}")
    return source


@pytest.mark.nightly  # what a service answers, is cut in the test of the operator
def test_changes_ends_silently_when_its_reader_closes_the_pipe(folder: Path, past: Source):
    """The command has a JVM of its own; for a path nothing needs to be configured."""
    given = environment(folder)
    bare = {name: value for name, value in given.items() if name != "CDF_STATE_PATH"}
    changes_are_cut(bare, str(past.path))


def changes_are_cut(given: dict[str, str], table: str) -> None:
    """As ``| head`` does."""
    words = [COMMAND, "changes", table, "--from", "1", "--format", "csv"]
    with subprocess.Popen(words, env=given, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as cut:
        assert cut.stdout
        assert cut.stderr
        assert cut.stdout.readline().startswith("id,name,amount,_change_type")
        cut.stdout.close()
        log = cut.stderr.read()
    assert cut.returncode == 0, log
    assert "Broken" not in log
    assert "Traceback" not in log


def test_operator_pauses_a_route_and_resyncs_another_despite_a_kill(
    tmp_path: Path, past: Source, redis_server: Redis, here: Callable[..., Ended]
):
    """One life of a service with the routes ``rest_cache`` and ``past_cache``; SIGKILL ends it in the sweep of a resync.

    Redis answers slowly then, so that the sweep takes some seconds.
    """
    with Proxy(redis_server.port) as proxy:
        given = environment(
            tmp_path,
            HTTP__TOKEN=TOKEN,
            **{
                f"TABLES__{slug}__{name}": value
                for slug in ("PAST", "REST")
                for name, value in {"PATH": past.path, "KEYS": "id", "SINKS": "cache"}.items()
            },
            SINKS__CACHE__TYPE="redis",
            SINKS__CACHE__URL=f"redis://127.0.0.1:{proxy.port}/0",
        )
        paused = command(given, "pause", "rest_cache")
        assert paused.code == 0, paused.log
        with Service(given) as service, redis.Redis.from_url(redis_server.url) as client:
            service.started()
            service.wait_delivered("past_cache", past.version)
            changes_are_cut(given | {"CDF_SPARK__JARS": str(tmp_path)}, "past")
            a_route_is_paused_and_resumed_by_command_and_by_http(service, past, redis_server)

            client.mset(dict.fromkeys(FOREIGN, "theirs"))
            client.set("past:1", "theirs")
            a_dry_run_and_a_cap_remove_nothing(given, here, client)
            proxy.mode = "slow"
            words = [COMMAND, "resync", "past_cache", "--yes"]
            with subprocess.Popen(words, env=given, stderr=subprocess.DEVNULL):  # ends as the service has
                until(lambda: client.exists(*FOREIGN) < len(FOREIGN), describe=service.log.read_text)
                service.kill()
            assert client.exists(*FOREIGN) > 0, "the sweep was not at its end"

        proxy.mode = "pass"
        last = here(given, "run", "--once")
    assert last.code == 0, last.log
    assert entries(redis_server.url, "past:") == past.rows


def a_route_is_paused_and_resumed_by_command_and_by_http(service: Service, past: Source, redis_server: Redis) -> None:
    """It was paused before the service began."""
    service.wait_state("rest_cache", "paused")
    assert service.get("/readyz").status_code == 200, "a paused route does not make the service unready"
    assert entries(redis_server.url, "rest:") == {}
    resumed = command(service.given, "resume", "rest")
    assert resumed.code == 0, resumed.log
    service.wait_delivered("rest_cache", past.version)
    assert entries(redis_server.url, "rest:") == past.rows

    pause, replay, resync, redrive, verify, follow = documented(
        {"http://replicator:9102": service.url, "orders_search": "rest_cache", "$TOKEN": TOKEN, "12}": "1}"}
    )
    for request, state in ((replay, "done"), (resync, "done"), (verify, "done"), (redrive, "failed")):
        service.wait_state("rest_cache", "running")
        reply = send(request)
        assert reply.status_code == 202, reply.text
        following = [word.replace("6f0c…", reply.json()["id"]) for word in follow]
        until(lambda: send(following).json()["state"] == state, 120, lambda: send(following).text)  # noqa: B023
    assert "no open dead letter" in send(following).json()["message"]
    assert send(pause).status_code == 202
    service.wait_state("rest_cache", "paused")
    assert httpx.post(f"{service.url}/routes/rest_cache/resume", trust_env=False).status_code == 401

    control = ["pause requested", "replay requested", "resume requested"]
    events = [event["what"] for event in service.status()["events"] if event["route"] == "rest_cache"]
    assert [what for what in events if what in control] == control, "newest first"
    ended = Ended(0, "", service.log.read_text())
    said = [entry["message"] for entry in ended.entries if entry.get("route") == "rest_cache"]
    assert [what for what in reversed(said) if what in control] == control
    assert TOKEN not in ended.log


def a_dry_run_and_a_cap_remove_nothing(given: dict[str, str], here: Callable[..., Ended], client: redis.Redis) -> None:
    tried = here(given, "resync", "past_cache", "--dry-run")
    assert tried.code == 0, tried.log
    assert "target  21000 entries, of which at least 20000 (95.2%) would be removed" in tried.output
    refused = here(given, "resync", "past_cache")
    assert refused.code == 1
    assert "would remove 20000 of the target's 21000 entries (95.2%), more than 10.0%" in refused.log
    assert "resync past_cache --yes" in refused.log
    assert client.exists(*FOREIGN) == len(FOREIGN)
    assert client.get("past:1") != b"theirs", "the snapshot is loaded"


def documented(here: dict[str, str]) -> list[list[str]]:
    """The words of each curl line of the page, with what is so ``here`` in place of what the page says."""
    text = (ROOT / "docs/pause-and-http-control.md").read_text().replace("\\\n", "")
    for theirs, ours in here.items():
        text = text.replace(theirs, ours)
    return [shlex.split(line)[2:] for line in text.splitlines() if line.startswith("    $ curl ")]


def send(words: list[str]) -> httpx.Response:
    """Send the request that curl would send with these arguments."""
    curl = ArgumentParser()
    curl.add_argument("url")
    curl.add_argument("-X", default="GET")
    curl.add_argument("-H", action="append")
    curl.add_argument("-d")
    given = curl.parse_args(words)
    headers = dict(header.split(": ", 1) for header in given.H)
    return httpx.request(given.X, given.url, headers=headers, content=given.d, timeout=10, trust_env=False)
