from cdf_replicator.pipeline.streaming_query import poll_seconds, trigger_seconds


def test_a_few_routes_look_ten_times_as_often_as_they_must_where_looking_is_free():
    assert trigger_seconds(1, 3, free=True) == 0.1


def test_many_routes_share_fifty_looks_a_second():
    assert trigger_seconds(1, 20, free=True) == 0.4
    assert trigger_seconds(1, 500, free=True) == 1


def test_who_asks_for_more_than_a_second_gets_it():
    assert trigger_seconds(60, 3, free=True) == 60


def test_where_a_look_is_paid_for_nobody_looks_more_often_than_asked():
    assert trigger_seconds(1, 3, free=False) == 1


def test_many_routes_are_looked_at_less_often():
    assert poll_seconds(3) == 0.5
    assert poll_seconds(25) == 1
    assert poll_seconds(5000) == 2
