"""The watermarks that an index keeps for a copy of itself."""

from connectors.change import Watermark
from connectors.elasticsearch.claim import marks_with

HOUR, DAY = 3600, 86_400


def reached(version):
    return Watermark(0, version, version)


def entry(seconds, version):
    return [seconds, str(reached(version))]


def test_first_watermark_is_kept_with_its_time():
    assert marks_with([], reached(1), 100) == [entry(100, 1)]


def test_further_watermark_is_kept_after_an_hour():
    first = [entry(100, 1)]
    assert marks_with(first, reached(2), 100 + HOUR - 1) == first
    assert marks_with(first, reached(2), 100 + HOUR) == [entry(100, 1), entry(100 + HOUR, 2)]


def test_newest_watermark_of_the_day_before_is_the_oldest_that_is_kept():
    marks = []
    for hour in range(60):
        marks = marks_with(marks, reached(hour), hour * HOUR)
    assert marks == [entry(hour * HOUR, hour) for hour in range(59 - 24, 60)]
    idle = marks_with(marks, reached(99), 200 * HOUR)
    assert idle == [entry(59 * HOUR, 59), entry(200 * HOUR, 99)]


def test_clock_that_was_set_back_keeps_no_time_of_the_future():
    assert marks_with([entry(100, 1), entry(DAY, 2)], reached(3), 200) == [entry(100, 1), entry(200, 3)]
