"""Samples as SVG paths."""

import math
import re
from datetime import timedelta

from cdf_replicator.monitoring.history import Samples
from cdf_replicator.server.pages.charts import LINE_POINTS, POINTS, charts, small_line
from cdf_replicator.server.pages.measures import DAY, HOUR
from tests.unit.boards import START

NAN = math.nan


def samples(lag=(), rows=(), latency=(), *, step=5, until=START):
    return Samples(step, until.timestamp(), tuple(lag), tuple(rows), tuple(latency))


def places(path):
    return [(int(x), int(y)) for x, y in re.findall(r"(\d+) (\d+)", path)]


def test_small_line_ends_at_the_right_and_fills_the_height():
    line = places(small_line(samples([0.0] * 12 + [10.0] * 12 + [20.0] * 12), HOUR))
    assert line == [(LINE_POINTS - 3, 20), (LINE_POINTS - 2, 10), (LINE_POINTS - 1, 0)]


def test_small_line_of_a_small_lag_is_almost_flat():
    assert places(small_line(samples([0.5] * 720), HOUR)) == [(x, 18) for x in range(LINE_POINTS)]


def test_route_without_samples_has_no_line():
    assert small_line(samples(), HOUR) == ""
    assert [chart.line for chart in charts(Samples(5, 0.0), HOUR, START)] == ["", "", ""]


def test_chart_has_axes_with_units_and_extremes():
    lag, rows, latency = charts(samples([7.0, 30.0, 12.0] * 3, [100.0, 250.0, 130.0] * 3, [0.4] * 9), HOUR, START)
    assert (lag.title, lag.scale, lag.now, lag.most) == ("Lag", ("30 s", "15 s", "0"), "30 s", "30 s")
    assert lag.times == ("11:00", "11:15", "11:30", "11:45", "12:00")
    assert (rows.scale, rows.now, rows.least) == (("200", "100", "0"), "160", "160"), "the mean of three samples"
    assert (latency.scale, latency.now) == (("0.5 s", "0.25 s", "0"), "0.4 s")
    assert places(lag.line)[-1] == (POINTS - 1, 0)


def test_day_covers_its_whole_time():
    (lag, *_) = charts(samples([60.0] * 1440, [0.0] * 1440, [NAN] * 1440, step=60), DAY, START)
    assert lag.times == ("12:00", "18:00", "00:00", "06:00", "12:00")
    assert [x for x, _ in places(lag.line)] == list(range(POINTS))


def test_gap_of_the_samples_is_a_gap_of_the_line():
    (lag, *_) = charts(samples([1.0] * 30 + [NAN] * 60 + [1.0] * 30, [0.0] * 120, [NAN] * 120), HOUR, START)
    assert lag.line.count("M") == lag.area.count("M") == lag.area.count("z") == 2


def test_latency_is_a_bar_for_each_delivery():
    latencies = [NAN, NAN, 2.0] + [NAN] * 6 + [1.0, NAN, NAN]
    latency = charts(samples([0.0] * 12, [0.0] * 12, latencies), HOUR, START)[2]
    assert (latency.line, latency.area) == (f"M{POINTS - 4} 100V0M{POINTS - 1} 100V50", "")


def test_samples_that_ended_do_not_reach_the_right():
    (lag, *_) = charts(samples([1.0] * 3, [0.0] * 3, [NAN] * 3), HOUR, START + timedelta(minutes=30))
    assert places(lag.line)[-1][0] == POINTS // 2 - 1


def test_values_of_zero_are_a_line_at_the_bottom():
    lag, rows, _ = charts(samples([0.0] * 3, [0.0] * 3, [NAN] * 3), HOUR, START)
    assert (lag.scale, rows.scale) == (("1 s", "0.5 s", "0"), ("1", "0.5", "0"))
    assert places(lag.line)[-1] == (POINTS - 1, 100)


def test_long_lag_has_days_on_its_axis():
    (lag, *_) = charts(samples([200_000.0] * 3, [0.0] * 3, [NAN] * 3), HOUR, START)
    assert lag.scale == ("3 d", "1 d 12 h", "0")


def test_clock_that_was_set_forward_leaves_an_empty_chart():
    (lag, *_) = charts(samples([1.0] * 3, [0.0] * 3, [NAN] * 3), HOUR, START + timedelta(days=4000))
    assert lag.line == ""


def test_points_stay_from_one_refresh_to_the_next():
    values, shapes = [float(number % 7) for number in range(720)], []
    for later in range(4):
        until = START + timedelta(seconds=5 * later)
        (lag, *_) = charts(samples(values[later : 600 + later], until=until), HOUR, until)
        shapes.append([y for _, y in places(lag.line)])
    assert all(shape[-100:-1] == shapes[0][-99:] for shape in shapes[1:])
