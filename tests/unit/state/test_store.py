"""The state path: what is written is whole, what is damaged or newer is refused with the next step."""

from __future__ import annotations

import json
import os
import threading
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from cdf_replicator.errors.exceptions import StateError
from cdf_replicator.route import Route, Source
from cdf_replicator.state import storage_path
from cdf_replicator.state.lease import Lease
from cdf_replicator.state.route_state import RouteState
from cdf_replicator.state.store import FORMAT, StateStore, write_json
from connectors import RouteOptions, Watermark

STATE = RouteState("orders_search", {"keys": ["id"], "filter": None}, "table-1", pinned_version=7)

UNPRIVILEGED_USER = 65534


@pytest.fixture
def path(tmp_path):
    return StateStore.open(tmp_path / "state")


def test_a_new_folder_gets_a_format_and_an_owner(path):
    assert json.loads((path.root / "format.json").read_text()) == {"format": FORMAT, "owner": path.owner}
    assert len(path.owner) == 32


def test_a_state_path_is_created_with_the_folders_above_it(tmp_path):
    root = tmp_path / "new" / "newer" / "state"
    assert StateStore.open(root).owner == json.loads((root / "format.json").read_text())["owner"]
    assert [file.name for file in root.iterdir()] == ["format.json"], "and nothing else"


def test_start_succeeds_if_a_process_of_equal_id_removed_its_probe(tmp_path, monkeypatch):
    monkeypatch.setattr(Path, "write_text", lambda *_: None)
    assert len(StateStore.open(tmp_path).owner) == 32


def test_the_owner_stays_the_same(path):
    assert StateStore.open(path.root).owner == path.owner


def test_simultaneous_first_starts_see_one_owner(tmp_path):
    owners, gate = [], threading.Barrier(8)

    def start():
        gate.wait()
        owners.append(StateStore.open(tmp_path / "state").owner)

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(owners) == 8
    assert len(set(owners)) == 1


def test_a_route_is_unknown_before_its_first_start(path):
    assert path.load("orders_search") is None
    assert path.newest_generation("orders_search") == 0


def test_saved_state_is_loaded(path):
    path.save(STATE)
    assert path.load("orders_search") == STATE
    later = STATE.next_generation(3, replay_end_version=9)
    path.save(later)
    assert path.load("orders_search") == later


def test_state_of_an_older_service_is_loaded(path):
    path.save(FURTHER)
    file = path.root / "routes" / "orders_search" / "route.json"
    new = ("first_generation", "read_version", "read_modified_at", "completed_offset", "snapshot_version")
    older = {name: value for name, value in json.loads(file.read_text()).items() if name not in new}
    write_json(file, older)
    assert path.load("orders_search") == replace(FURTHER, **dict.fromkeys(new))
    assert path.load("orders_search").snapshot_generation == FURTHER.generation


def test_later_commit_that_was_read_replaces_an_earlier_one():
    later = FURTHER.having_read(9, 1.0)
    assert (later.read_version, later.read_modified_at) == (9, 1.0)
    assert FURTHER.having_read(9, None) == FURTHER.having_read(6, 1.0) == FURTHER


def test_interrupted_write_keeps_old_text(path, monkeypatch):
    path.save(STATE)

    def die(*_):
        raise OSError("disk full")

    monkeypatch.setattr(storage_path.os, "fsync", die)
    with pytest.raises(OSError, match="disk full"):
        path.save(STATE.next_generation(3, replay_end_version=9))
    assert path.load("orders_search") == STATE


def test_a_reader_never_sees_half_a_file(tmp_path):
    file, done, seen = tmp_path / "file.json", threading.Event(), []
    write_json(file, {"n": 0, "text": ""})

    def read():
        while not done.is_set():
            content = json.loads(file.read_text())
            seen.append(len(content["text"]) == content["n"] * 1000)

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(50):
        write_json(file, {"n": number, "text": "x" * number * 1000})
    done.set()
    reader.join()
    assert all(seen)
    assert [entry.name for entry in tmp_path.iterdir()] == ["file.json"]


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"route": "orders_search"}', '{"surprise": 1}', "null"])
def test_a_damaged_route_is_named(path, text):
    path.save(STATE)
    file = path.root / "routes" / "orders_search" / "route.json"
    file.write_text(text)
    with pytest.raises(StateError, match=r"route\.json is damaged"):
        path.load("orders_search")


@pytest.mark.parametrize(
    ("found", "writer"), [(FORMAT - 1, "an older"), (FORMAT + 1, "a newer"), ("x", "a newer"), (None, "a newer")]
)
def test_another_format_is_refused_with_the_next_step(path, found, writer):
    write_json(path.root / "format.json", {"format": found, "owner": "us"})
    with pytest.raises(StateError, match=f"has state format {found}, this version reads format {FORMAT}") as raised:
        StateStore.open(path.root)
    assert f"written by {writer} cdf-replicator: run that version, or name an empty folder" in str(raised.value)
    assert "resync ROUTE" in str(raised.value)


@pytest.mark.parametrize("text", ["", "{", "5", "[1]", "null"])
def test_a_damaged_format_is_refused(path, text):
    (path.root / "format.json").write_text(text)
    with pytest.raises(StateError, match=r"format\.json can't be read"):
        StateStore.open(path.root)


def test_unwritable_folder_is_reported_with_the_next_step(tmp_path):
    (tmp_path / "file").touch()
    for root in (tmp_path / "file", tmp_path / "file" / "state"):
        with pytest.raises(StateError, match=f"CDF_STATE_PATH={root} is not writable .* mount a volume"):
            StateStore.open(root)


def test_check_of_an_absent_state_path_writes_nothing(tmp_path):
    StateStore.check(tmp_path / "new" / "state")
    assert list(tmp_path.iterdir()) == []


def test_check_of_a_state_path_leaves_it_unchanged(path):
    before = {file: file.stat().st_mtime_ns for file in (path.root, *path.root.iterdir())}
    StateStore.check(path.root)
    assert {file: file.stat().st_mtime_ns for file in (path.root, *path.root.iterdir())} == before


def test_check_refuses_what_a_start_refuses(path, tmp_path):
    (tmp_path / "file").touch()
    for root in (tmp_path / "file", tmp_path / "file" / "state"):
        with pytest.raises(StateError, match=f"CDF_STATE_PATH={root} is not writable .* mount a volume"):
            StateStore.check(root)
    write_json(path.root / "format.json", {"format": FORMAT + 1, "owner": "us"})
    with pytest.raises(StateError, match=f"has state format {FORMAT + 1}"):
        StateStore.check(path.root)
    (path.root / "format.json").write_text("{")
    with pytest.raises(StateError, match=r"format\.json can't be read"):
        StateStore.check(path.root)


def test_check_refuses_a_folder_without_write_permission(tmp_path):
    refused, user = tmp_path / "refused", os.geteuid()
    refused.mkdir(mode=0o500)
    os.seteuid(user or UNPRIVILEGED_USER)  # the permission bits do not restrict root
    try:
        for root in (refused, refused / "new" / "state"):
            with pytest.raises(StateError, match=r"is not writable \(Permission denied\)"):
                StateStore.check(root)
    finally:
        os.seteuid(user)


def test_a_replay_is_the_next_generation_of_the_same_epoch():
    later = STATE.next_generation(3, replay_end_version=9)
    assert (later.generation, later.epoch, later.phase) == (1, 1, "streaming")
    assert (later.start_version, later.pinned_version, later.replay_end_version) == (3, None, 9)


def test_second_replay_keeps_end_version_of_first():
    twice = STATE.next_generation(3, replay_end_version=9).next_generation(1, replay_end_version=4)
    assert (twice.generation, twice.replay_end_version) == (2, 9)


def test_a_resync_is_the_next_epoch_above_the_targets():
    later = STATE.next_epoch(20, table_id="table-2", above=5)
    assert (later.epoch, later.generation, later.phase) == (6, 1, "bootstrapping")
    assert (later.pinned_version, later.table_id, later.target_prepared, later.replay_end_version) == (
        20,
        "table-2",
        False,
        -1,
    )


def test_the_newest_generation_is_read_off_the_checkpoints(path):
    for name in ("0", "2", "10", "junk"):
        (path.checkpoint("orders_search", 0).parent / name).mkdir(parents=True)
    assert path.newest_generation("orders_search") == 10


FURTHER = RouteState(
    route="orders_search",
    identity={"keys": ["id"]},
    table_id="table-1",
    epoch=3,
    generation=4,
    phase="streaming",
    pinned_version=7,
    start_version=8,
    requested_start_version=6,
    replay_end_version=9,
    target_prepared=True,
    query_started=True,
    snapshot_loaded=True,
    max_removed_share=0.5,
    table_schema={"columns": []},
    held_version=5,
    target_watermark="3:2:5",
    first_generation=3,
    read_version=7,
    read_modified_at=1700000000.123,
    completed_offset="8:2",
)


def test_replay_changes_only_the_generation_fields_of_a_state():
    assert FURTHER.next_generation(2, replay_end_version=4, watermark=Watermark(4, 1, 8)) == replace(
        FURTHER,
        generation=5,
        pinned_version=None,
        start_version=2,
        query_started=False,
        target_watermark="4:1:8",
        completed_offset=None,
    )
    assert FURTHER.next_generation(2, replay_end_version=4).target_watermark is None


def test_resync_keeps_route_identity_and_requested_start_of_a_state():
    assert FURTHER.next_epoch(20, table_id="table-2", share=0.1) == RouteState(
        route="orders_search",
        identity={"keys": ["id"]},
        table_id="table-2",
        epoch=4,
        generation=5,
        pinned_version=20,
        requested_start_version=6,
        max_removed_share=0.1,
        first_generation=5,
        snapshot_version=20,
    )
    assert FURTHER.next_epoch(20, table_id="table-2").max_removed_share is None


def test_epoch_of_a_resync_exceeds_the_state_and_the_target():
    epochs = [FURTHER.next_epoch(20, table_id="table-1", above=above).epoch for above in (0, 2, 3, 4)]
    assert epochs == [4, 4, 4, 5]


def test_a_route_of_a_state_path_is_paused_until_it_is_resumed(path):
    assert not path.is_paused("orders_search")
    path.set_paused("orders_search")
    assert StateStore(path.root).is_paused("orders_search")
    since = json.loads((path.root / "routes" / "orders_search" / "paused.json").read_text())["since"]
    assert abs(datetime.fromisoformat(since) - datetime.now(timezone.utc)) < timedelta(hours=1)
    assert not path.is_paused("orders_cache")
    path.set_paused("orders_search", paused=False)
    path.set_paused("orders_search", paused=False)
    assert not path.is_paused("orders_search")


def test_a_state_path_keeps_the_checkpoint_of_each_generation_apart(path):
    assert path.checkpoint("orders_search", 3) == path.root / "routes" / "orders_search" / "checkpoints" / "3"
    assert path.dead_letters == path.root / "dead_letters"
    assert path.requests == path.root / "requests"


def test_state_path_gives_a_sink_owner_epoch_and_lease_number(path):
    route = Route("r", Source("orders", "/orders"), "cache", ("id",), None, None, {}, RouteOptions())
    spec = path.route_spec(route, replace(STATE, epoch=3))
    assert (spec.name, spec.owner, spec.epoch, spec.fence) == ("r", path.owner, 3, 0)
    assert (spec.table_id, spec.first_generation) == (STATE.table_id, 0), "an older service wrote that state"
    resynced = STATE.next_epoch(5, table_id="new").next_generation(4, replay_end_version=7)
    spec = path.route_spec(route, resynced)
    assert (spec.first_generation, spec.snapshot_version) == (STATE.generation + 1, 5), "also after a replay"
    path.lease = Lease.acquire(path.root)
    assert path.route_spec(route, STATE).fence == path.lease.token > 0
    path.lease.release()
