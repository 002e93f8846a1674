"""The check that no commit of the table of dead letters is torn."""

import pytest

from cdf_replicator.delivery.dead_letter_table import DeadLetterTable
from cdf_replicator.errors.exceptions import RouteHaltError
from cdf_replicator.state.storage_path import LocalPath


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "_delta_log").mkdir()
    return LocalPath(tmp_path)


def commit(folder, number, text):
    file = folder / "_delta_log" / f"{number:020}.json"
    file.write_text(text)
    return file


def test_commit_that_clean_up_deletes_after_the_listing_is_passed_over(folder, monkeypatch):
    """Each route checks the table, and the writer of any route deletes commits that Delta no longer needs."""
    old, new = (commit(folder, number, "{}\n") for number in (0, 1))
    listed = LocalPath.glob

    def late(path, pattern):
        found = list(listed(path, pattern))
        old.unlink(missing_ok=True)
        return found

    monkeypatch.setattr(LocalPath, "glob", late)
    assert DeadLetterTable(None, folder).naming(lambda: "read") == "read"
    assert not old.exists()
    assert new.exists()


@pytest.mark.parametrize("text", ["", '{"add":'])
def test_torn_commit_names_the_table_of_dead_letters(folder, text):
    commit(folder, 0, "{}\n")
    commit(folder, 1, text)
    with pytest.raises(RouteHaltError, match=f"{folder} is damaged: a commit of its log is torn"):
        DeadLetterTable(None, folder).naming(lambda: "read")


def test_commits_before_a_whole_checkpoint_are_not_read(folder):
    """Delta does not read them either, and keeps them for 30 days."""
    commit(folder, 9, "")
    commit(folder, 11, "{}\n")
    checkpoint = folder / "_delta_log" / f"{10:020}.checkpoint.parquet"
    checkpoint.write_text("PAR1 PAR1")
    assert DeadLetterTable(None, folder).naming(lambda: "read") == "read"
    checkpoint.write_text("PAR1 PA")
    with pytest.raises(RouteHaltError, match="torn"):
        DeadLetterTable(None, folder).naming(lambda: "read")
