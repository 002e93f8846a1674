"""Test the time from commit to delivery."""

from __future__ import annotations

import math

from cdf_replicator.monitoring.metrics.latency import delivery_latencies

ALWAYS = -math.inf


def test_one_commit_has_its_own_latency():
    assert delivery_latencies((7, 7), (100.0, 100.0), since=ALWAYS, now=102.5) == [2.5]


def test_each_commit_from_the_first_to_the_last_counts():
    assert delivery_latencies((7, 8), (100.0, 104.0), since=ALWAYS, now=105.0) == [5.0, 1.0]
    assert delivery_latencies((7, 11), (100.0, 104.0), since=ALWAYS, now=105.0) == [5.0, 4.0, 3.0, 2.0, 1.0]


def test_commits_made_before_the_route_followed_do_not_count():
    assert delivery_latencies((7, 11), (100.0, 104.0), since=103.0, now=105.0) == [2.0, 1.0]
    assert delivery_latencies((7, 11), (100.0, 104.0), since=math.inf, now=105.0) == []


def test_commit_by_a_clock_that_is_ahead_has_no_negative_latency():
    assert delivery_latencies((7, 7), (100.0, 100.0), since=ALWAYS, now=99.0) == [0.0]


def test_micro_batch_without_known_commits_has_no_latency():
    assert delivery_latencies(None, (100.0, 100.0), since=ALWAYS, now=105.0) == []
    assert delivery_latencies((7, 7), None, since=ALWAYS, now=105.0) == []
