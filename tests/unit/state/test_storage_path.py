"""The writes that a path of this machine makes durable."""

import errno
import os
import threading

import pytest

from cdf_replicator.state.storage_path import LocalPath


@pytest.fixture
def folder(tmp_path):
    return LocalPath(tmp_path)


@pytest.fixture
def synced(monkeypatch):
    """The names that reached the disk, in order."""
    names = []
    fsync = os.fsync

    def recorded(handle):
        fsync(handle)
        names.append(os.path.basename(os.readlink(f"/proc/self/fd/{handle}")))  # noqa: PTH115, PTH119

    monkeypatch.setattr(os, "fsync", recorded)
    return names


def test_new_files_are_synced_before_their_folder(folder, synced):
    (folder / "old").write_text("")
    os.utime(folder / "old", (100, 100))
    (folder / "new").write_text("")
    (folder / "folder").mkdir()
    folder.sync(since=200)
    assert synced == ["new", folder.name]


@pytest.mark.parametrize("failing", ["fsync", "replace", "link"])
def test_failed_write_leaves_no_draft(folder, monkeypatch, failing):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    file = folder / "route.json"
    file.replace_text("old")
    if failing == "replace":
        monkeypatch.setattr(LocalPath, "replace", full)
    else:
        monkeypatch.setattr(os, failing, full)
    write = (folder / "new.json").create_text if failing == "link" else file.replace_text
    with pytest.raises(OSError, match="No space left"):
        write("new")
    assert [each.name for each in folder.iterdir()] == ["route.json"]
    assert file.read_text() == "old"


def test_listing_has_the_matching_names_and_none_of_an_absent_folder(folder):
    for name in ("1.json", "2.json", "1.crc", ".2.json"):
        (folder / name).write_text("")
    assert sorted(file.name for file in folder.glob("[0-9]*.json")) == ["1.json", "2.json"]
    assert len(list(folder.glob("*"))) == 4
    assert list((folder / "absent").glob("*")) == []


def test_sync_of_an_absent_folder_does_nothing(folder, synced):
    (folder / "absent").sync(since=0)
    assert synced == []


def test_sync_passes_over_a_draft_another_writer_deletes(folder, monkeypatch):
    """Two routes append to the table of dead letters at the same time; a commit of Delta begins as a draft."""
    for name in ("one", "two"):
        (folder / name).write_text("")
    fsync = os.fsync
    synced = []

    def deleting(handle):
        fsync(handle)
        synced.append(os.readlink(f"/proc/self/fd/{handle}"))  # noqa: PTH115
        for file in folder.iterdir():
            file.unlink()

    monkeypatch.setattr(os, "fsync", deleting)
    folder.sync(since=0)
    assert len(synced) == 2  # the first file, and the folder


def test_sync_beside_a_writer_raises_nothing(folder):
    (folder / "commit").write_text("")
    done = threading.Event()

    def write():
        while not done.is_set():
            draft = folder / "draft"
            draft.write_text("")
            draft.replace(folder / "renamed")

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(300):
            folder.sync(since=0)
    finally:
        done.set()
        writer.join()
    assert (folder / "commit").exists()
