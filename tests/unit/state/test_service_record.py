"""The record of the lease holder leads a command to that holder alone."""

from __future__ import annotations

import errno
import json
import os
import socket
import stat
from dataclasses import replace

import pytest

from cdf_replicator.state.lease import Lease
from cdf_replicator.state.service_record import NoServiceError, ServiceRecord, find, publish, withdraw


def record_of(lease):
    return ServiceRecord("127.0.0.1", 9102, socket.gethostname(), lease.token, "secret")


@pytest.fixture
def record(tmp_path):
    lease = Lease.acquire(tmp_path)
    yield record_of(lease)
    lease.release()


def test_record_is_found_while_the_lease_is_held(tmp_path):
    lease = Lease.acquire(tmp_path)
    record = record_of(lease)
    publish(tmp_path, record)
    assert find(tmp_path) == record
    assert stat.S_IMODE((tmp_path / "service.json").stat().st_mode) == 0o600
    assert [file.name for file in tmp_path.iterdir() if file.is_file()] == ["service.json"], "no draft is left"
    lease.release()
    with pytest.raises(NoServiceError, match="no service holds the lease"):
        find(tmp_path)


def test_record_of_an_earlier_holder_is_void(tmp_path, record):
    publish(tmp_path, replace(record, lease=record.lease - 1))
    with pytest.raises(NoServiceError, match="no service holds the lease"):
        find(tmp_path)


def test_lease_that_cannot_be_read_is_reported(tmp_path, record, monkeypatch):
    publish(tmp_path, record)

    def fails(root, token):
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    monkeypatch.setattr("cdf_replicator.state.lease.is_held", fails)
    with pytest.raises(
        NoServiceError, match=f"the lease of the state path can't be read .*{os.strerror(errno.ESTALE)}"
    ):
        find(tmp_path)


def test_record_of_another_host_is_not_used(tmp_path, record):
    publish(tmp_path, replace(record, host="elsewhere"))
    with pytest.raises(NoServiceError, match="runs on another host"):
        find(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"port": 1', "\xff"])
def test_damaged_record_is_reported(tmp_path, text):
    (tmp_path / "service.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(NoServiceError, match="can't be read"):
        find(tmp_path)


def test_absent_record_or_folder_is_no_service(tmp_path):
    for folder in (tmp_path, tmp_path / "absent"):
        with pytest.raises(NoServiceError, match="no service answers queries"):
            find(folder)


def test_only_the_own_record_is_withdrawn(tmp_path, record):
    publish(tmp_path, record)
    withdraw(tmp_path, record.lease - 1)
    assert json.loads((tmp_path / "service.json").read_text())["secret"] == "secret"
    withdraw(tmp_path, record.lease)
    withdraw(tmp_path, record.lease)
    assert not (tmp_path / "service.json").exists()
