"""A worker returns its result to the driver, and the retry policy limits the wait."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdf_replicator.delivery.result import DeliveryBugError, DeliveryResult, Failure, RejectedRow
from cdf_replicator.delivery.retry import RetryPolicy
from connectors import PermanentError, RetryableError

texts = st.text(st.characters(exclude_categories=["Cs"]))
counts = st.dictionaries(texts, st.integers(0, 2**53)).map(Counter)
whole = st.integers(0, 2**63 - 1)
seconds = st.floats(0, allow_nan=False, allow_infinity=False)
letters = st.builds(RejectedRow, key=st.none() | texts, guard=whole, code=texts, reason=texts)
failures = st.builds(
    Failure, st.sampled_from(["retryable", "permanent", "bug"]), texts, texts, retry_after=st.none() | seconds
)
outcomes = st.builds(
    DeliveryResult,
    received=counts,
    applied=counts,
    stale=whole,
    noop=whole,
    rejected=counts,
    letters=st.lists(letters),
    retries=counts,
    request_seconds=st.lists(seconds),
    sent_bytes=whole,
    failure=st.none() | failures,
)


@given(outcomes)
def test_an_outcome_survives_the_journey_to_the_driver(outcome):
    assert DeliveryResult.from_json(outcome.to_json()) == outcome
    assert DeliveryResult.from_json(outcome.to_json().decode()) == outcome


@given(outcomes, outcomes)
def test_the_sum_of_two_outcomes_counts_all_and_keeps_the_first_failure(one, other):
    total = DeliveryResult()
    total.add(one)
    total.add(other)
    assert total.changes == one.changes + other.changes
    assert total.letters == one.letters + other.letters
    assert total.failure == (one.failure or other.failure)
    assert total.received == one.received + other.received or 0 in {*one.received.values(), *other.received.values()}


def test_result_without_failure_raises_nothing():
    assert DeliveryResult().raise_failure() is None


@pytest.mark.parametrize(
    ("kind", "error"), [("retryable", RetryableError), ("permanent", PermanentError), ("bug", DeliveryBugError)]
)
def test_a_failure_is_raised_as_what_it_was(kind, error):
    with pytest.raises(error, match="why"):
        DeliveryResult(failure=Failure(kind, "why", "detail")).raise_failure()


def test_a_servers_word_on_waiting_reaches_the_driver():
    with pytest.raises(RetryableError) as raised:
        DeliveryResult(failure=Failure("retryable", "overloaded", "", retry_after=60.0)).raise_failure()
    assert raised.value.retry_after == 60.0


@given(st.integers(1, 10_000), st.floats(0.01, 10), st.floats(0.01, 100))
def test_a_wait_is_somewhere_between_nothing_and_the_bound(attempt, first, cap):
    wait = RetryPolicy(first_seconds=first, cap_seconds=cap).backoff(attempt)
    assert 0 <= wait <= min(cap, first * 2 ** min(attempt, 1000))


def test_waits_are_spread_over_the_whole_range():
    policy = RetryPolicy(first_seconds=1, cap_seconds=8)
    waits = [policy.backoff(3) for _ in range(2000)]
    assert min(waits) < 1
    assert max(waits) > 7
    assert 3 < sum(waits) / len(waits) < 5


def test_without_a_budget_there_is_one_try():
    tries = []

    def fail():
        tries.append(1)
        raise RetryableError("unreachable")

    with pytest.raises(RetryableError):
        RetryPolicy(budget_seconds=0).retrying(lambda _: None)(fail)
    assert len(tries) == 1


def test_sum_of_results_keeps_watched_keys_times_and_bytes_of_both():
    total = DeliveryResult(met={"a": 1}, request_seconds=[0.5], sent_bytes=10)
    total.add(DeliveryResult(met={"b": 2}, request_seconds=[0.25], sent_bytes=5))
    assert (total.met, total.request_seconds, total.sent_bytes) == ({"a": 1, "b": 2}, [0.5, 0.25], 15)
