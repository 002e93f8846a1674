"""Comparisons on request: one at a time, answers in memory, and the texts that an operator reads."""

from __future__ import annotations

import pytest

from cdf_replicator.errors.exceptions import ComparisonRefusedError
from cdf_replicator.monitoring.status import VerificationStatus
from cdf_replicator.state.command_queue import CommandStatus
from cdf_replicator.verification.expected import refused
from cdf_replicator.verification.requests import KEPT, ComparisonRequest, ComparisonRequests, progress, result
from cdf_replicator.verification.result import Comparison, Verification
from tests.unit.boards import START

DONE = CommandStatus("done", "equal", 1.0)


@pytest.fixture
def requests():
    requests = ComparisonRequests()
    requests.open()
    return requests


def ended(comparison, **more):
    given = {"changed": 0, "dead_letters": 0, "left_out": (), "seconds": 2.14, **more}
    return Verification("orders_search", "index orders", 12, 13, comparison=comparison, **given)


def test_second_request_is_refused_until_the_first_has_ended(requests):
    first = requests.submit("orders_search")
    assert requests.follow(first) == CommandStatus("running", "accepted")
    for route in ("orders_search", "orders_cache"):
        with pytest.raises(ComparisonRefusedError, match="A comparison of route orders_search is running"):
            requests.submit(route)
    requests.answer(requests.present, CommandStatus("running", "9 rows", 0.5))
    with pytest.raises(ComparisonRefusedError):
        requests.submit("orders_cache")
    requests.answer(requests.present, DONE)
    assert (requests.present, requests.follow(first)) == (None, DONE)
    assert requests.submit("orders_cache") != first


def test_closed_requests_are_refused_and_the_present_one_is_answered(requests):
    with pytest.raises(ComparisonRefusedError, match="No comparison starts now"):
        ComparisonRequests().submit("orders_search")
    request_id = requests.submit("orders_search")
    present = requests.present
    requests.close()
    with pytest.raises(ComparisonRefusedError, match="reloads or stops"):
        requests.submit("orders_search")
    requests.answer(present, DONE)  # the cancelled comparison ends later
    assert (requests.follow(request_id).state, requests.present) == ("failed", None)
    assert "A reload or the end of the service" in requests.follow(request_id).message
    requests.open()
    assert requests.submit("orders_search")


def test_late_answer_does_not_end_the_next_request(requests):
    requests.submit("orders_search")
    former = requests.present
    requests.close()
    requests.open()
    following = requests.submit("orders_search")
    requests.answer(former, DONE)
    assert (requests.present.id, requests.follow(following).state) == (following, "running")


def test_answers_are_kept_up_to_a_number(requests):
    ids = []
    for _ in range(KEPT + 5):
        ids.append(requests.submit("orders_search"))
        requests.answer(requests.present, DONE)
    assert [requests.follow(each) for each in ids] == [None] * 5 + [DONE] * KEPT


def test_progress_is_estimated_by_the_last_comparison():
    assert progress(1234, 3.2, None) == CommandStatus("running", "1,234 rows and entries read in 3 s")
    last = VerificationStatus(9, START, 8.0, 0, {})
    said = "1,234 rows and entries read in 4 s; the last comparison took 8 s"
    assert progress(1234, 4.0, last) == CommandStatus("running", said, 0.5)
    assert progress(1234, 400.0, last).ratio == 0.99


@pytest.mark.parametrize(
    ("outcome", "state", "message"),
    [
        (
            ended(Comparison(1000, 1000)),
            "done",
            "equal to version 12 of the table; 1,000 rows and 1,000 entries compared; 2.1 s",
        ),
        (
            ended(Comparison(1000, 999, {"missing": 2, "extra": 1, "different": 0}), changed=3, left_out=("a", "b")),
            "done",
            (
                "missing 2, extra 1: differs from version 12 of the table; 1,000 rows and 999 entries compared; "
                "3 keys left out that changed meanwhile; columns left out: a, b; 2.1 s"
            ),
        ),
        (refused("It can't be verified."), "failed", "It can't be verified. Compare by other means."),
        (
            None,
            "failed",
            "The route stopped or restarted, which ended the comparison. Start it again.",
        ),
    ],
)
def test_answer_has_the_numbers_or_the_next_step(outcome, state, message):
    answer = result(ComparisonRequest("orders_search"), outcome)
    assert (answer.state, answer.message) == (state, message)
