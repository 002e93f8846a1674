"""One writer per state path, and however it dies, the next may follow at once."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone

import pytest

from cdf_replicator.errors.exceptions import LeaseLostError
from cdf_replicator.state.lease import (
    LOOK_SECONDS,
    SILENT_SECONDS,
    HeartbeatMonitor,
    Lease,
    LeaseHeldError,
    holder,
    is_held,
)
from cdf_replicator.state.lease_file import TOUCH_SECONDS, LocalLeaseFile
from cdf_replicator.state.route_state import RouteState
from cdf_replicator.state.storage_path import LocalPath
from cdf_replicator.state.store import StateStore
from tests.support.waiting import until

HOLD = """
import sys, time
from cdf_replicator.state.lease import Lease
from cdf_replicator.state.storage_path import LocalPath
lease = Lease.acquire(LocalPath(sys.argv[1]), url="http://there:9102")
print("held", flush=True)
time.sleep(600)
"""


class Clock:
    """A clock that moves only while a standby waits between two polls; it calls ``meanwhile`` with its time."""

    def __init__(self, meanwhile=lambda now: None, ends=100.0):
        self.meanwhile, self.ends = meanwhile, ends
        self.now = 0.0

    def __call__(self):
        return self.now

    def wait(self, seconds):
        self.now += seconds
        self.meanwhile(self.now)
        return self.now >= self.ends


def waited(tmp_path, clock=None):
    """Return the lease that a standby gets, and the holders that were reported to it."""
    clock, holders = clock or Clock(), []
    return Lease.wait(tmp_path, holders.append, clock.wait, None, clock), holders


def mark(tmp_path, lease):
    return tmp_path / "leases" / f"{lease.token}.json"


def alive(tmp_path, lease, since=0.0):
    """A holder that touches its file from a time on."""

    def touch(now):
        if now >= since and now % TOUCH_SECONDS == 0:
            os.utime(mark(tmp_path, lease), (now, now))

    return touch


def test_second_writer_is_refused_with_the_lease_holder(tmp_path):
    lease = Lease.acquire(tmp_path, url="http://here:9102")
    with pytest.raises(
        LeaseHeldError, match=rf"{tmp_path} is in use \(.*pid {os.getpid()}.*http://here:9102"
    ) as raised:
        Lease.acquire(tmp_path)
    assert raised.value.holder["pid"] == os.getpid()
    assert {"host", "since"} <= raised.value.holder.keys()
    lease.release()


def test_released_lease_can_be_acquired_again(tmp_path):
    Lease.acquire(tmp_path).release()
    assert holder(tmp_path) is None
    Lease.acquire(tmp_path).release()


def test_unused_lease_has_no_holder(tmp_path):
    assert holder(tmp_path) is None


def test_two_state_paths_have_two_leases(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    one, other = Lease.acquire(tmp_path / "a"), Lease.acquire(tmp_path / "b")
    assert one.held
    assert other.held
    one.release()
    assert holder(tmp_path / "a") is None
    assert holder(tmp_path / "b")["pid"] == os.getpid()
    other.release()


def test_killed_holder_loses_its_lease(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "held\n"
        with pytest.raises(LeaseHeldError) as raised:
            Lease.acquire(tmp_path)
        assert raised.value.holder["pid"] == process.pid
        assert raised.value.holder["url"] == "http://there:9102"
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
    assert holder(tmp_path) is None
    lease = Lease.acquire(tmp_path)
    assert holder(tmp_path)["pid"] == os.getpid()
    lease.release()


def test_empty_lease_file_counts_as_a_lease(tmp_path):
    lease = Lease.acquire(tmp_path)
    mark(tmp_path, lease).write_text("")
    with pytest.raises(LeaseHeldError, match=r"in use \(another process\)"):
        Lease.acquire(tmp_path)
    lease.release()


def failing_read(monkeypatch, number):
    """Let the storage refuse to open a lease."""
    opened = LocalPath.open

    def refused(path, mode="r", **options):
        if path.parent.name == "leases" and mode == "r":
            raise OSError(number, os.strerror(number), str(path))
        return opened(path, mode, **options)

    monkeypatch.setattr(LocalPath, "open", refused)


@pytest.mark.parametrize("number", [errno.ESTALE, errno.ETIMEDOUT, errno.EIO, errno.EMFILE])
def test_failed_read_of_the_lease_is_no_end_of_its_holder(tmp_path, monkeypatch, number):
    lease = Lease.acquire(tmp_path)
    with monkeypatch.context() as context:
        failing_read(context, number)
        for read in (Lease.acquire, holder, lambda root: is_held(root, lease.token)):
            with pytest.raises(OSError, match=os.strerror(number)):
                read(tmp_path)
        assert waited(tmp_path, Clock(ends=10.0)) == (None, [])
    assert lease.held
    lease.release()


def test_lease_that_this_user_may_not_read_is_held(tmp_path, monkeypatch):
    lease = Lease.acquire(tmp_path)
    with monkeypatch.context() as context:
        failing_read(context, errno.EACCES)
        assert holder(tmp_path) == {}
        with pytest.raises(LeaseHeldError, match=r"in use \(another process\)"):
            Lease.acquire(tmp_path)
    assert lease.held
    lease.release()


def test_token_is_never_reused(tmp_path):
    tokens = []
    for _ in range(3):
        lease = Lease.acquire(tmp_path)
        tokens.append(lease.token)
        lease.release()
    assert tokens == sorted(set(tokens))
    assert [file.name for file in (tmp_path / "leases").iterdir()] == [f"{tokens[-1]}.json"]


def test_restored_state_path_continues_above_lost_lease_numbers(tmp_path, monkeypatch):
    lease, later = Lease.acquire(tmp_path), time.time() + 1
    lease.release()
    shutil.rmtree(tmp_path / "leases")
    monkeypatch.setattr(time, "time", lambda: later)
    after = Lease.acquire(tmp_path)
    assert after.token > lease.token
    after.release()


def test_standby_continues_to_poll_an_unwritable_state_path(tmp_path, monkeypatch):
    held, link, tried = Lease.acquire(tmp_path), os.link, []

    def refused(*paths):
        tried.append(paths)
        if len(tried) < 3:
            raise OSError(errno.EROFS, "Read-only file system")
        link(*paths)

    monkeypatch.setattr(os, "link", refused)
    held.release()
    lease, _ = waited(tmp_path)
    assert lease.held
    assert [file.name for file in (tmp_path / "leases").iterdir()] == [f"{lease.token}.json"]
    lease.release()


def test_one_of_many_simultaneous_starts_gets_the_lease(tmp_path):
    def take():
        try:
            return Lease.acquire(tmp_path)
        except LeaseHeldError:
            return None

    with ThreadPoolExecutor(16) as threads:
        taken = [lease for lease in threads.map(lambda _: take(), range(16)) if lease]
    assert len(taken) == 1
    taken[0].release()


def test_standby_takes_over_after_release(tmp_path):
    held = Lease.acquire(tmp_path, url="http://here:9102")
    clock = Clock(lambda now: now == 3 and held.release())
    lease, holders = waited(tmp_path, clock)
    assert clock.now == 3
    assert lease.token > held.token
    assert [holder["url"] for holder in holders] == ["http://here:9102"]
    lease.release()


def test_standby_does_not_replace_live_holder(tmp_path):
    held = Lease.acquire(tmp_path)
    assert waited(tmp_path, Clock(alive(tmp_path, held)))[0] is None
    assert held.held
    held.release()


def test_holder_sends_heartbeats_while_it_keeps_lease(tmp_path, monkeypatch):
    monkeypatch.setattr("cdf_replicator.state.lease_file.TOUCH_SECONDS", 0.01)
    held = Lease.acquire(tmp_path)
    held.keep(lambda: None)
    for _ in range(2):
        os.utime(mark(tmp_path, held), (0, 0))
        until(lambda: mark(tmp_path, held).stat().st_mtime > 0, 60)
    held.release()


def test_standby_takes_over_from_a_silent_holder_which_detects_the_loss(tmp_path, monkeypatch):
    """It keeps its lock and does not touch its file: paused, or cut off."""
    monkeypatch.setattr("cdf_replicator.state.lease_file.TOUCH_SECONDS", 0.01)
    held, lost, clock = Lease.acquire(tmp_path), threading.Event(), Clock()
    lease, _ = waited(tmp_path, clock)
    assert clock.now == SILENT_SECONDS + LOOK_SECONDS
    assert (lease.held, held.held) == (True, False)
    assert lease.token > held.token
    held.keep(lost.set)
    assert lost.wait(60)
    held.release()
    lease.release()


def test_standby_after_failed_polls_does_not_replace_a_live_holder(tmp_path, monkeypatch):
    """The store was away for both, and the standby sees it again before the holder does."""
    held, look, back = Lease.acquire(tmp_path), HeartbeatMonitor.poll, 5 + 2 * SILENT_SECONDS
    clock = Clock(alive(tmp_path, held, since=back + SILENT_SECONDS / 2))

    def blind(watched):
        if 5 < clock.now < back:
            raise OSError(errno.EIO, "away")
        return look(watched)

    monkeypatch.setattr(HeartbeatMonitor, "poll", blind)
    assert waited(tmp_path, clock)[0] is None
    assert held.held
    held.release()


def test_a_paused_process_loses_its_lease(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "held\n"
        process.send_signal(signal.SIGSTOP)
        lease, (said,) = waited(tmp_path)
        assert said["pid"] == process.pid
        lease.release()
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()


def test_missing_state_path_is_a_lost_lease(tmp_path):
    root = tmp_path / "state"
    root.mkdir()
    lease = Lease.acquire(root)
    shutil.rmtree(root)
    assert not lease.held
    lease.release()


def test_state_is_not_saved_under_a_lost_lease(tmp_path):
    state_path = StateStore.open(tmp_path)
    state_path.lease = Lease.acquire(tmp_path)
    state = RouteState("orders_cache", {}, "id")
    state_path.save(state)
    lease, _ = waited(tmp_path)
    with pytest.raises(LeaseLostError, match=r"lease of .* is lost"):
        state_path.save(state)
    state_path.lease.release()
    lease.release()


def test_delayed_writer_takes_no_number_above_a_newer_lease(tmp_path, monkeypatch):
    now, link = time.time(), os.link
    first = []

    def held_up(*paths):
        monkeypatch.setattr(os, "link", link)
        monkeypatch.setattr(time, "time", lambda: now)
        with ThreadPoolExecutor(1) as another:
            first.append(another.submit(Lease.acquire, tmp_path).result())
        link(*paths)

    monkeypatch.setattr(os, "link", held_up)
    monkeypatch.setattr(time, "time", lambda: now + 5)
    with pytest.raises(LeaseHeldError):
        Lease.acquire(tmp_path)
    assert first[0].held
    first[0].release()


def test_holder_shows_host_process_start_and_url_without_the_nonce(tmp_path):
    lease = Lease.acquire(tmp_path, url="http://here:9102")
    said = holder(tmp_path)
    assert said.keys() == {"host", "pid", "since", "url"}
    assert (said["host"], said["pid"], said["url"]) == (socket.gethostname(), os.getpid(), "http://here:9102")
    assert abs(datetime.fromisoformat(said["since"]) - datetime.now(timezone.utc)) < timedelta(hours=1)
    assert {"host", "pid", "since", "url", "nonce"} == json.loads(mark(tmp_path, lease).read_text()).keys()
    lease.release()
    lease = Lease.acquire(tmp_path)
    assert "url" not in holder(tmp_path)
    lease.release()


def test_two_lease_files_of_one_process_differ(tmp_path):
    texts = set()
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        lease = Lease.acquire(tmp_path / name)
        texts.add(json.loads(mark(tmp_path / name, lease).read_text())["nonce"])
        lease.release()
    assert len(texts) == 2


def test_each_holder_is_reported_to_a_standby_once(tmp_path):
    held, later = Lease.acquire(tmp_path, url="http://first"), []

    def meanwhile(now):
        if now == 2:
            held.release()
            later.append(Lease.acquire(tmp_path, url="http://second"))
        for lease in later:
            alive(tmp_path, lease)(now)

    lease, holders = waited(tmp_path, Clock(meanwhile, ends=40))
    assert lease is None
    assert [said["url"] for said in holders] == ["http://first", "http://second"]
    later[0].release()


def test_a_watched_holder_is_silent_only_after_the_whole_time(tmp_path):
    held, clock = Lease.acquire(tmp_path), Clock()
    watched = HeartbeatMonitor(tmp_path, clock)
    assert watched.poll()[1]
    for now in range(1, int(SILENT_SECONDS) + 1):
        clock.now = float(now)
        assert not watched.poll()[1]
    assert not watched.expired
    clock.now = SILENT_SECONDS + 0.001
    assert watched.expired
    os.utime(mark(tmp_path, held), (1, 1))
    watched.poll()
    assert not watched.expired
    held.release()


def test_lease_number_exceeds_the_newest_despite_a_late_clock(tmp_path, monkeypatch):
    first = Lease.acquire(tmp_path)
    first.release()
    monkeypatch.setattr(time, "time", lambda: 5.0)
    second = Lease.acquire(tmp_path)
    assert second.token == first.token + 1
    second.release()


def test_standby_that_takes_over_records_its_url(tmp_path):
    lease = Lease.wait(tmp_path, lambda said: None, Clock().wait, "http://standby:9102", Clock())
    assert holder(tmp_path)["url"] == "http://standby:9102"
    lease.release()


def test_stopped_standby_takes_no_lease(tmp_path):
    held, clock = Lease.acquire(tmp_path), Clock(ends=LOOK_SECONDS)
    assert waited(tmp_path, clock)[0] is None
    assert clock.now == LOOK_SECONDS
    assert held.held
    held.release()


def test_a_release_does_not_wait_for_a_store_that_does_not_answer(tmp_path, monkeypatch):
    answers, tried, release = threading.Event(), threading.Event(), LocalLeaseFile.release

    def hang(file):
        tried.set()
        answers.wait(60)
        release(file)

    monkeypatch.setattr(LocalLeaseFile, "release", hang)
    monkeypatch.setattr("cdf_replicator.state.lease.RELEASE_SECONDS", 0.01)
    held = Lease.acquire(tmp_path)
    held.release()
    assert tried.wait(60)
    assert holder(tmp_path) is not None
    answers.set()
    until(lambda: holder(tmp_path) is None, 60)


def test_lease_threads_do_not_keep_process_alive(tmp_path, monkeypatch):
    """A process whose main thread has failed has to end, or its standby never follows."""
    answers, release = threading.Event(), LocalLeaseFile.release
    monkeypatch.setattr(LocalLeaseFile, "release", lambda file: answers.wait(60) and release(file))
    monkeypatch.setattr("cdf_replicator.state.lease.RELEASE_SECONDS", 0.01)
    before = set(threading.enumerate())
    held = Lease.acquire(tmp_path)
    held.keep(lambda: None)
    keeping = set(threading.enumerate()) - before
    held.release()
    releasing = set(threading.enumerate()) - before - keeping
    assert [(thread.name, thread.daemon) for thread in keeping] == [("lease", True)]
    assert [(thread.name, thread.daemon) for thread in releasing] == [("lease-release", True)]
    answers.set()
    until(lambda: holder(tmp_path) is None, 60)


def test_holder_continues_its_heartbeat_after_a_disk_error(tmp_path, monkeypatch):
    touch, tried = LocalLeaseFile.heartbeat, []

    def refused(file):
        tried.append(file)
        if len(tried) < 3:
            raise OSError(errno.EROFS, "Read-only file system")
        touch(file)

    monkeypatch.setattr("cdf_replicator.state.lease_file.TOUCH_SECONDS", 0.01)
    monkeypatch.setattr(LocalLeaseFile, "heartbeat", refused)
    held, lost = Lease.acquire(tmp_path), []
    os.utime(mark(tmp_path, held), (0, 0))
    held.keep(lambda: lost.append(held))
    until(lambda: mark(tmp_path, held).stat().st_mtime > 0, 60)
    held.release()
    assert lost == []


def test_holder_continues_its_heartbeat_after_any_error(tmp_path, monkeypatch):
    touch, tried = LocalLeaseFile.heartbeat, []

    def fails(file):
        tried.append(file)
        if len(tried) < 3:
            raise RuntimeError("of a client library")
        touch(file)

    monkeypatch.setattr("cdf_replicator.state.lease_file.TOUCH_SECONDS", 0.01)
    monkeypatch.setattr(LocalLeaseFile, "heartbeat", fails)
    held = Lease.acquire(tmp_path)
    os.utime(mark(tmp_path, held), (0, 0))
    held.keep(lambda: None)
    until(lambda: mark(tmp_path, held).stat().st_mtime > 0, 60)
    held.release()


def test_stray_file_among_the_leases_is_ignored(tmp_path):
    (tmp_path / "leases").mkdir()
    (tmp_path / "leases" / "1 (copy).json").write_text("{}")
    held = Lease.acquire(tmp_path)
    assert held.held
    held.release()


def test_unreadable_state_path_is_not_a_lost_lease(tmp_path, monkeypatch, unreadable):
    monkeypatch.setattr("cdf_replicator.state.lease_file.TOUCH_SECONDS", 0.01)
    held, lost = Lease.acquire(tmp_path), []
    with monkeypatch.context():
        unreadable()
        with pytest.raises(PermissionError):
            assert held.held
        held.keep(lambda: lost.append(held))
        time.sleep(0.1)
    monkeypatch.undo()
    assert held.held
    os.utime(mark(tmp_path, held), (0, 0))
    until(lambda: lost or mark(tmp_path, held).stat().st_mtime > 0, 60)
    assert lost == []
    held.release()
