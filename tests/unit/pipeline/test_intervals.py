from cdf_replicator.pipeline.streaming_query import poll_seconds, trigger_seconds


def test_few_routes_poll_ten_times_per_interval_in_a_local_file_system():
    assert trigger_seconds(1, 3, 10) == 0.1


def test_many_routes_share_fifty_polls_a_second():
    assert trigger_seconds(1, 20, 10) == 0.4
    assert trigger_seconds(1, 500, 10) == 1


def test_long_log_is_listed_less_often():
    assert trigger_seconds(1, 3, 4_000) == 0.4
    assert trigger_seconds(1, 3, 20_000) == 1


def test_configured_interval_above_a_second_is_kept():
    assert trigger_seconds(60, 3, 10) == 60


def test_paid_polls_are_no_more_frequent_than_configured():
    assert trigger_seconds(1, 3, None) == 1


def test_many_routes_are_polled_less_often():
    assert poll_seconds(3) == 0.5
    assert poll_seconds(25) == 1
    assert poll_seconds(5000) == 2
