"""Numbers, times and texts for operators."""

from datetime import timedelta

import pytest

from cdf_replicator.server.pages.formatting import duration, number, prose, time_left
from tests.unit.boards import START


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (None, "—"),
        (float("nan"), "—"),
        (0.0, "0 s"),
        (0.0042, "4.2 ms"),
        (0.0999, "100 ms"),
        (0.0625, "62 ms"),
        (0.418, "0.42 s"),
        (9.5, "9.5 s"),
        (59.7, "1 min"),
        (303.0, "5 min 3 s"),
        (3600.0, "1 h"),
        (7800.0, "2 h 10 min"),
        (timedelta(days=3, hours=4, minutes=5).total_seconds(), "3 d 4 h"),
    ],
)
def test_durations_have_two_units(seconds, said):
    assert duration(seconds) == said


@pytest.mark.parametrize(
    ("value", "said"), [(None, "—"), (float("inf"), "—"), (0, "0"), (1.25, "1.2"), (12345.6, "12,346")]
)
def test_numbers_are_grouped(value, said):
    assert number(value) == said


def test_only_text_between_backticks_is_code():
    assert prose("run `a b` & see") == "run <code>a b</code> &amp; see"


@pytest.mark.parametrize(
    ("ratio", "said"),
    [
        (0.0, "time left not known yet"),
        (0.25, "about 5 min left"),
        (0.999, "about 1 s left"),
    ],
)
def test_time_left_follows_from_the_past(ratio, said):
    assert time_left(ratio, START, START + timedelta(seconds=100)) == said


def test_time_left_is_unknown_at_the_start():
    assert time_left(0.5, START, START) == "time left not known yet"
