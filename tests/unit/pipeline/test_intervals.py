from cdf_replicator.pipeline.streaming_query import poll_seconds, trigger_seconds


def test_few_routes_poll_ten_times_per_interval_if_polling_is_free():
    assert trigger_seconds(1, 3, free=True) == 0.1


def test_many_routes_share_fifty_polls_a_second():
    assert trigger_seconds(1, 20, free=True) == 0.4
    assert trigger_seconds(1, 500, free=True) == 1


def test_configured_interval_above_a_second_is_kept():
    assert trigger_seconds(60, 3, free=True) == 60


def test_paid_polls_are_no_more_frequent_than_configured():
    assert trigger_seconds(1, 3, free=False) == 1


def test_many_routes_are_polled_less_often():
    assert poll_seconds(3) == 0.5
    assert poll_seconds(25) == 1
    assert poll_seconds(5000) == 2
