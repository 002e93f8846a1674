"""The watermarks that an index keeps for a copy of itself."""

from connectors import Claim, RouteSpec, Watermark
from connectors.elasticsearch import ElasticsearchSink
from connectors.elasticsearch.claim import held, marks_with
from connectors.elasticsearch.index import Index

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


def test_watermarks_of_an_earlier_epoch_are_no_claim_of_a_copy():
    """An earlier release keeps them when it starts an epoch, and removes the watermark itself."""
    route = RouteSpec("orders_search", "orders", ("id",), ElasticsearchSink.Options(), "us", 2, first_generation=3)
    marks = [[0, "2:7:7"], [DAY, "3:1:9"], [2 * DAY, "3:5:12"]]
    note = {"route": "orders_search", "owner": "us", "epoch": 2, "identity": "former", "mark": "3:5:12"}

    def copy(**kept):
        return Index("orders", None, (), {}, {"_meta": {"cdf_replicator": note | kept}}, {"uuid": "copy"})

    assert held(copy(marks=marks), route) == Claim("us", 2, Watermark(3, 1, 9), True, 3 * 2**32 + 1, "orders_search")
    assert held(copy(marks=marks[:2]), route) == Claim("us", 2, None, True, -1, "orders_search")
    del note["mark"]
    assert held(copy(marks=marks), route) == Claim("us", 2, None, True, -1, "orders_search")
