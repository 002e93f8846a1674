"""The numbers that order changes: guards, and the version of a micro-batch."""

from __future__ import annotations

import pytest

from connectors import Batch, Change, RouteOptions, RouteSpec, Watermark
from connectors.change import EPOCH_STEP, commit_version_of, guard_of

ROUTE = RouteSpec("r", "t", ("id",), RouteOptions(), owner="us", epoch=1)


@pytest.mark.parametrize(
    ("epoch", "version", "upsert", "guard"),
    [
        (0, 0, False, 0),
        (0, 0, True, 1),
        (1, 0, False, 2**44),
        (1, 7, False, 2**44 + 14),
        (1, 7, True, 2**44 + 15),
        (3, 7, True, 3 * 2**44 + 15),
    ],
)
def test_guard_has_epoch_then_doubled_commit_version_then_upsert_bit(epoch, version, upsert, guard):
    assert guard_of(epoch, version, upsert=upsert) == guard
    assert commit_version_of(guard) == version


def test_guards_order_by_epoch_then_version_then_upsert_after_delete():
    ordered = [(epoch, version, upsert) for epoch in (1, 2) for version in (0, 1, 2) for upsert in (False, True)]
    guards = [guard_of(epoch, version, upsert=upsert) for epoch, version, upsert in ordered]
    assert guards == sorted(set(guards))


def test_highest_guard_of_an_epoch_is_below_the_next_epoch():
    newest = EPOCH_STEP // 2 - 1
    assert guard_of(1, newest, upsert=True) == guard_of(2, 0, upsert=False) - 1
    assert commit_version_of(guard_of(1, newest, upsert=True)) == newest


@pytest.mark.parametrize(
    ("change_type", "deleted"),
    [
        ("snapshot", False),
        ("insert", False),
        ("update_preimage", True),
        ("update_postimage", False),
        ("delete", True),
    ],
)
def test_change_has_its_commit_version_and_deletion_flag(change_type, deleted):
    change = Change("1", guard_of(2, 9, upsert=not deleted), change_type, {})
    assert (change.deleted, change.commit_version) == (deleted, 9)


def test_txn_version_orders_batches_by_generation_then_number():
    assert Batch(ROUTE, 0, 0, "t").txn_version == 0
    assert Batch(ROUTE, 3, 17, "t").txn_version == 3 * 2**32 + 17
    assert Batch(ROUTE, 1, 0, "t").txn_version > Batch(ROUTE, 0, 2**32 - 1, "t").txn_version


def test_only_batch_0_without_replay_or_request_is_a_bootstrap():
    assert Batch(ROUTE, 2, 0, "t").is_bootstrap
    assert not Batch(ROUTE, 2, 1, "t").is_bootstrap
    assert not Batch(ROUTE, 2, 0, "t", may_exist=True).is_bootstrap
    assert not Batch(ROUTE, 2, 0, "t", request="redrive-1").is_bootstrap


def test_text_of_a_watermark_has_three_numbers_or_only_the_version():
    assert str(Watermark(0, 0, 5)) == "0:0:5"
    assert str(Watermark(3, 17, 40)) == "3:17:40"
    assert str(Watermark(-1, 0, 7)) == "7"
    assert Watermark.parse("7") == Watermark(-1, 0, 7)


def test_watermark_with_batch_has_the_txn_version_of_its_batch():
    assert Watermark(3, 17, 40).txn_version == Batch(ROUTE, 3, 17, "t").txn_version
    assert Watermark(0, 0, 40).txn_version == 0
    assert Watermark(-1, 5, 40).txn_version == -1
