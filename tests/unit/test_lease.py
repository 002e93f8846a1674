"""One writer per state path, and however it dies, the next may follow at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from cdf_replicator.lease import Lease, LeaseHeldError, holder

HOLD = """
import sys, time
from pathlib import Path
from cdf_replicator.lease import Lease
lease = Lease.acquire(Path(sys.argv[1]), url="http://there:9102")
print("held", flush=True)
time.sleep(600)
"""


def test_a_second_writer_is_refused_and_told_who_holds_the_lease(tmp_path):
    lease = Lease.acquire(tmp_path, url="http://here:9102")
    with pytest.raises(
        LeaseHeldError, match=rf"{tmp_path} is in use \(.*pid {os.getpid()}.*http://here:9102"
    ) as raised:
        Lease.acquire(tmp_path)
    assert raised.value.holder["pid"] == os.getpid()
    assert {"host", "since"} <= raised.value.holder.keys()
    lease.release()


def test_a_released_lease_can_be_taken_again(tmp_path):
    Lease.acquire(tmp_path).release()
    assert holder(tmp_path) is None
    Lease.acquire(tmp_path).release()


def test_nobody_holds_a_lease_that_was_never_taken(tmp_path):
    assert holder(tmp_path) is None


def test_two_state_paths_have_two_leases(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    one, other = Lease.acquire(tmp_path / "a"), Lease.acquire(tmp_path / "b")
    one.release()
    other.release()


def test_a_killed_holder_holds_nothing(tmp_path):
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


def test_a_lease_file_of_somebody_who_wrote_nothing_is_still_a_lease(tmp_path):
    lease = Lease.acquire(tmp_path)
    (tmp_path / "lease").write_text("")
    with pytest.raises(LeaseHeldError, match=r"in use \(another process\)"):
        Lease.acquire(tmp_path)
    lease.release()
