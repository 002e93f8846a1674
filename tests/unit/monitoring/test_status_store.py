"""The status store keeps the reports of routes for its readers."""

import threading
from datetime import timedelta

import orjson
import pytest

from cdf_replicator.monitoring.health import WORST_FIRST, unready_routes
from cdf_replicator.monitoring.history.event_log import EVENTS_KEPT, EVENTS_SHOWN
from cdf_replicator.monitoring.status import STATES, ReplayStatus
from cdf_replicator.monitoring.status_store import (
    BATCHES_KEPT,
    REQUESTS_KEPT,
    StatusStore,
)
from cdf_replicator.monitoring.totals import REJECTION_CODES_LIMIT, RESTART_REASONS, RETRY_REASONS, BatchStatus
from cdf_replicator.settings.redact import without_credentials
from tests.unit.boards import START


@pytest.fixture
def board(clock):
    board = StatusStore(clock)
    board.add_sink("search", "elasticsearch", "http://elastic:secret@es:9200")
    board.add_sink("cache", "redis", "redis://:secret@cache:6379/0")
    board.add_route("orders_search", "orders", "search")
    board.add_route("orders_cache", "orders", "cache")
    return board


def only(board, route="orders_search"):
    return next(status for status in board.snapshot().routes if status.route == route)


def counted(counts):
    return {label: count for label, count in counts.items() if count}


def batch(number, *, rows=1, outcome="delivered", **counts):
    return BatchStatus(number, (number, number), {"insert": rows}, {"write": 0.5}, outcome, START, **counts)


def test_lag_in_seconds_grows_without_deliveries(board, clock):
    board.update("orders_search", delivered_version=7)
    board.update("orders_search", source_version=9, oldest_undelivered_commit_at=START)
    clock.tick(30)
    assert (only(board).lag_versions, only(board).lag_seconds) == (2, 30)
    clock.tick(30)
    assert only(board).lag_seconds == 60


def test_lag_ends_with_the_delivery_before_the_next_source_poll(board, clock):
    board.update("orders_search", source_version=9, oldest_undelivered_commit_at=START)
    clock.tick(30)
    board.update("orders_search", delivered_version=9)
    assert (only(board).lag_versions, only(board).lag_seconds) == (0, 0)


def test_lag_is_unknown_until_both_ends_are_known(board):
    assert (only(board).lag_versions, only(board).lag_seconds) == (None, None)
    board.update("orders_search", source_version=9, oldest_undelivered_commit_at=None)
    assert only(board).lag_versions is None


def test_commit_from_the_future_has_zero_lag(board):
    board.update("orders_search", delivered_version=8)
    board.update("orders_search", source_version=9, oldest_undelivered_commit_at=START + timedelta(hours=1))
    assert only(board).lag_seconds == 0


def test_only_a_changed_state_is_an_event(board, clock):
    at = clock.tick(5)
    board.state("orders_search", "running")
    clock.tick(5)
    board.state("orders_search", "running")
    (event,) = board.snapshot().events
    assert (event.at, event.route, event.what) == (at, "orders_search", "starting → running")
    assert only(board).since == at


def test_state_has_its_reason(board):
    board.state("orders_search", "retrying", "search is unreachable")
    assert only(board).reason == "search is unreachable"
    assert board.snapshot().events[0].what == "starting → retrying: search is unreachable"
    board.state("orders_search", "running")
    assert only(board).reason == ""


def test_inactive_route_has_zero_row_rates(board):
    board.update("orders_search", input_rows_per_second=10, processed_rows_per_second=20)
    assert only(board).processed_rows_per_second == 20
    board.state("orders_search", "halted")
    assert (only(board).input_rows_per_second, only(board).processed_rows_per_second) == (0, 0)


def test_newest_batches_are_kept_and_totals_count_every_batch(board):
    for number in range(BATCHES_KEPT + 5):
        board.batch("orders_search", batch(number, rows=2, applied={"insert": 1}, stale=1, rejected={"mapping": 1}))
    status = only(board)
    assert len(status.batches) == BATCHES_KEPT
    assert status.batches[0].batch_id == BATCHES_KEPT + 4
    assert status.batches[0].rows == 2
    assert counted(status.totals.received) == {"insert": 2 * (BATCHES_KEPT + 5)}
    assert counted(status.totals.applied) == {"insert": BATCHES_KEPT + 5}
    assert counted(status.totals.rejected) == {"mapping": BATCHES_KEPT + 5}
    assert status.totals.stale == BATCHES_KEPT + 5


def test_received_changes_without_another_result_are_superseded(board):
    for number in range(2):
        board.batch("orders_search", batch(number, rows=9, applied={"insert": 2}, stale=1, rejected={"mapping": 3}))
    assert (only(board).totals.superseded, only(board).batches[0].superseded) == (6, 3)


def test_totals_are_counted_by_change_type(board):
    board.batch("orders_search", BatchStatus(1, None, {"insert": 1, "delete": 2}, {}, "delivered", START))
    board.batch("orders_search", BatchStatus(2, None, {"delete": 3, "update_postimage": 4}, {}, "delivered", START))
    assert counted(only(board).totals.received) == {"insert": 1, "delete": 5, "update_postimage": 4}


def test_changes_of_a_failed_batch_are_not_counted(board):
    board.batch("orders_search", batch(1, outcome="failed", applied={"insert": 1}, stale=1))
    assert counted(only(board).totals.received) == {}
    assert (only(board).totals.superseded, only(board).batches[0].superseded) == (0, 0)
    assert (counted(only(board).totals.applied), only(board).totals.stale) == ({}, 0)
    assert only(board).last_delivery_at is None
    board.batch("orders_search", batch(1, applied={"insert": 1}))
    assert counted(only(board).totals.applied) == {"insert": 1}
    assert only(board).last_delivery_at == START


def test_events_are_kept_newest_first_and_bounded(board):
    for number in range(EVENTS_SHOWN + 5):
        board.event(f"event {number}")
    events = board.snapshot().events
    assert len(events) == EVENTS_SHOWN
    assert events[0].what == f"event {EVENTS_SHOWN + 4}"


def test_events_of_a_route_outlast_those_of_others(board):
    board.event("the first", "orders_search")
    for number in range(EVENTS_KEPT - 1):
        board.event(f"event {number}", "orders_cache")
    assert [event.what for event in board.events.newest("orders_search")] == ["the first"]
    assert len(board.events.newest("orders_cache")) == EVENTS_SHOWN
    board.event("one more", "orders_cache")
    assert board.events.newest("orders_search") == ()


def test_repeated_error_is_counted_and_another_error_starts_at_one(board, clock):
    board.failed("orders_search", "no answer", "unreachable", "wait")
    later = clock.tick(10)
    board.failed("orders_search", "still no answer", "unreachable", "wait")
    error = only(board).last_error
    assert (error.count, error.first_seen, error.last_seen, error.what) == (2, START, later, "still no answer")
    board.failed("orders_search", "gone", "DELTA_TABLE_NOT_FOUND", "create it")
    assert (only(board).last_error.count, only(board).last_error.first_seen) == (1, later)


def test_other_fields_are_kept_as_set(board):
    board.update("orders_search", generation=2, epoch=1, checkpoint="/state/2")
    board.update("orders_search", headroom_seconds=60.0, headroom_versions=3)
    board.update("orders_search", dead_letters=4)
    board.restarted("orders_search", "spark")
    status = only(board)
    assert (status.generation, status.epoch, status.checkpoint) == (2, 1, "/state/2")
    assert (status.headroom_seconds, status.headroom_versions) == (60, 3)
    assert (status.dead_letters, status.restarts) == (4, 1)


def test_replay_has_a_start_and_the_last_ratio_stays(board, clock):
    board.replay("orders_search", 3, 9, 0.25)
    clock.tick(5)
    board.replay("orders_search", 3, 9, 0.5)
    assert (only(board).replay, only(board).replay_progress) == (ReplayStatus(3, 9, 0.5, START), 0.5)
    board.replay("orders_search", 3, 9, 1)
    assert (only(board).replay, only(board).replay_progress) == (None, 1)
    board.replay("orders_search", 1, 9, 0.5)
    assert only(board).replay == ReplayStatus(1, 9, 0.5, START + timedelta(seconds=5))


def test_retries_and_restarts_are_counted_by_known_reason_or_as_other(board):
    board.requests("orders_search", [], {"timeout": 5, "http_599": 2}, 700)
    board.requests("orders_search", [], {"timeout": 1}, 300)
    for reason in ("unreachable", "gremlins", "unreachable"):
        board.restarted("orders_search", reason)
    totals, (search, _) = only(board).totals, board.snapshot().sinks
    assert counted(totals.retries) == {"timeout": 6, "other": 2}
    assert counted(totals.restarts) == {"unreachable": 2, "other": 1}
    assert (tuple(totals.retries), tuple(totals.restarts)) == (RETRY_REASONS, RESTART_REASONS)
    assert (only(board).restarts, search.retries, search.sent_bytes) == (3, 8, 1000)


def test_a_sink_that_invents_codes_without_end_fills_no_memory(board):
    board.add_route("orders_search", "orders", "search", ["mapping"])
    board.batch("orders_search", batch(1, rejected={f"code_{n}": 1 for n in range(500)}))
    board.batch("orders_search", batch(2, rejected={"mapping": 7, "another": 2}))
    rejected = only(board).totals.rejected
    assert len(rejected) == REJECTION_CODES_LIMIT
    assert (sum(rejected.values()), rejected["mapping"]) == (509, 7)


def test_sink_is_unchecked_then_up_or_down_since_a_time(board, clock):
    def search():
        return board.snapshot().sinks[0]

    assert search().up is None
    board.sink_up("search")
    up_at = search().since
    clock.tick(5)
    board.sink_up("search")
    assert (search().up, search().since) == (True, up_at)
    down_at = clock.tick(5)
    board.sink_down("search", "connection refused", "unreachable")
    clock.tick(5)
    board.sink_down("search", "connection refused", "unreachable")
    assert (search().up, search().since, search().last_error.count) == (False, down_at, 2)
    board.sink_up("search")
    assert [event.what for event in board.snapshot().events] == [
        "sink search answers again",
        "sink search is down: connection refused",
    ]


def test_failed_sink_of_paused_routes_is_unknown(board):
    """A paused route sends no request that would find that the sink answers again."""
    board.add_route("items_search", "items", "search")
    board.state("orders_cache", "running")
    board.sink_down("search", "connection refused", "unreachable")
    board.state("orders_search", "paused")
    assert board.snapshot().sinks[0].up is False, "another route may contact it"
    board.state("items_search", "paused")
    assert board.snapshot().sinks[0].up is None
    assert board.snapshot().service.summary == "Paused: orders_search, items_search."
    board.sink_up("cache")
    board.state("orders_cache", "paused")
    assert board.snapshot().sinks[1].up, "its last answer"


def test_failed_sink_of_removed_and_paused_routes_is_unknown(board):
    board.add_route("items_search", "items", "search")
    board.sink_down("search", "connection refused", "unreachable")
    board.state("orders_search", "paused")
    board.remove_route("items_search")
    assert board.snapshot().sinks[0].up is None


def test_all_errors_of_the_last_hour_are_counted(board, clock):
    board.failed("orders_search", "no answer", "unreachable", "wait")
    clock.tick(3000)
    board.failed("orders_search", "no answer", "unreachable", "wait")
    board.failed("orders_cache", "gone", "DELTA_TABLE_NOT_FOUND", "create it")
    assert board.snapshot().service.errors_last_hour == 3
    clock.tick(600)
    assert board.snapshot().service.errors_last_hour == 2


def test_sink_reports_the_times_of_its_latest_requests(board):
    search, cache = board.snapshot().sinks
    assert (search.request_seconds_p50, search.request_seconds_p95, search.retries) == (None, None, 0)
    board.requests("orders_search", [99.0] * 10, {"timeout": 1}, 0)
    board.requests("orders_search", [n / 1000 for n in reversed(range(REQUESTS_KEPT))], {"timeout": 2}, 0)
    search, cache = board.snapshot().sinks
    assert (search.request_seconds_p50, search.request_seconds_p95, search.retries) == (0.5, 0.949, 3)
    assert cache.request_seconds_p50 is None


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("http://elastic:secret@es:9200", "http://es:9200"),
        ("redis://:secret@cache:6379/0", "redis://cache:6379/0"),
        ("redis://user:se@cret@cache:6379/0", "redis://cache:6379/0"),
        ("http://a:b@one:9200,http://a:b@two:9200", "http://one:9200,http://two:9200"),
        ("http://one:9200,http://two:9200", "http://one:9200,http://two:9200"),
        ("abfss://lake@account.dfs.core.windows.net/audit", "abfss://lake@account.dfs.core.windows.net/audit"),
        ("s3a://lake/audit", "s3a://lake/audit"),
    ],
)
def test_credentials_are_never_shown(given, shown):
    assert without_credentials(given) == shown


def test_no_secret_reaches_the_snapshot(board):
    assert b"secret" not in orjson.dumps(board.snapshot())


def test_no_credential_of_an_error_reaches_the_snapshot(board):
    """A library's message may contain the address to which it connects."""
    text = "no answer from redis://app:hunter2@cache:6379"
    board.failed("orders_search", text, "timeout", f"Start {text}")
    board.sink_down("search", text, "timeout", f"Start {text}")
    board.state("orders_search", "halted", text)
    board.event(text, "orders_search")
    shown = orjson.dumps(board.snapshot())
    assert b"hunter2" not in shown
    assert shown.count(b"redis://app:********@cache:6379") == 8


def test_the_worst_route_comes_first(clock):
    board = StatusStore(clock)
    for state in STATES:
        board.add_route(f"r_{state}", "t", "s")
        board.state(f"r_{state}", state)
    assert [route.state for route in board.snapshot().routes] == list(WORST_FIRST)
    assert set(WORST_FIRST) == set(STATES)


def test_among_equals_the_longest_lag_comes_first(board):
    for route, age in (("orders_cache", 10), ("orders_search", 20)):
        board.state(route, "running")
        board.update(route, delivered_version=1)
        board.update(route, source_version=2, oldest_undelivered_commit_at=START - timedelta(seconds=age))
    assert [route.route for route in board.snapshot().routes] == ["orders_search", "orders_cache"]


@pytest.mark.parametrize(
    ("search", "cache", "state", "summary"),
    [
        ("starting", "running", "starting", "Starting: orders_search."),
        ("running", "running", "healthy", "All routes are running."),
        ("bootstrapping", "paused", "healthy", "Loading a first snapshot: orders_search. Paused: orders_cache."),
        ("retrying", "starting", "degraded", "Retrying: orders_search."),
        ("halted", "stalled", "failed", "Halted, action required: orders_search. Stalled: orders_cache."),
        ("halted", "halted", "failed", "Halted, action required: orders_search, orders_cache."),
    ],
)
def test_health_of_the_service_is_a_word_and_a_sentence(board, search, cache, state, summary):
    board.state("orders_search", search)
    board.state("orders_cache", cache)
    service = board.snapshot().service
    assert (service.state, service.summary) == (state, summary)


def test_replay_is_reported_by_a_healthy_service(board):
    board.state("orders_search", "running")
    board.state("orders_cache", "running")
    board.replay("orders_cache", 3, 9, 0.5)
    service = board.snapshot().service
    assert (service.state, service.summary) == ("healthy", "Replaying: orders_cache.")


def test_a_sink_that_is_down_degrades_the_service(board):
    board.state("orders_search", "running")
    board.state("orders_cache", "running")
    board.sink_down("search", "connection refused", "unreachable")
    service = board.snapshot().service
    assert (service.state, service.summary) == ("degraded", "No answer from: search.")


@pytest.mark.parametrize(
    ("search", "summary"),
    [
        ("running", "All routes are running. 1,003 dead letters are open."),
        ("halted", "Halted, action required: orders_search. 1,003 dead letters are open."),
    ],
)
def test_the_sentence_counts_open_dead_letters(board, search, summary):
    board.state("orders_search", search)
    board.state("orders_cache", "running")
    board.update("orders_search", dead_letters=3)
    board.update("orders_cache", dead_letters=1000)
    assert board.snapshot().service.summary == summary


def test_many_names_are_cut_short(clock):
    board = StatusStore(clock)
    for number in range(5):
        board.add_route(f"r{number}", "t", "s")
        board.state(f"r{number}", "halted")
    assert board.snapshot().service.summary == "Halted, action required: r0, r1, r2 and 2 more."


def test_service_without_routes_is_starting_until_it_stops(clock):
    board = StatusStore(clock)
    assert board.snapshot().service.state == "starting"
    board.stopping()
    assert board.snapshot().service.state == "stopping"
    assert board.snapshot().events[0].what.startswith("stopping")


def test_route_is_ready_after_its_query_and_its_sink_respond(board):
    def names():
        return {route.route for route in unready_routes(board.snapshot())}

    assert names() == {"orders_search", "orders_cache"}
    board.state("orders_search", "running")
    board.state("orders_cache", "bootstrapping")
    assert names() == {"orders_search", "orders_cache"}
    board.sink_up("search")
    board.sink_up("cache")
    assert names() == {"orders_cache"}
    board.state("orders_cache", "paused")
    assert names() == set()
    board.sink_down("search", "connection refused", "unreachable")
    assert names() == {"orders_search"}


def test_a_snapshot_does_not_change_afterwards(board):
    before = board.snapshot()
    board.state("orders_search", "running")
    board.batch("orders_search", batch(1))
    board.event("something")
    assert before.routes[1].state == "starting"
    assert before.routes[1].batches == ()
    assert before.events == ()


def test_the_json_is_versioned_and_times_are_utc(board, clock):
    board.runtime(spark="4.2.0")
    clock.tick(60)
    status = orjson.loads(orjson.dumps(board.snapshot(), option=orjson.OPT_UTC_Z))
    assert status["schema"] == 1
    assert status["at"] == "2026-05-01T12:01:00Z"
    assert status["service"]["uptime_seconds"] == 60
    assert status["service"]["runtime"] == {"spark": "4.2.0"}


def test_threads_that_write_at_once_lose_nothing(board):
    def deliver():
        for number in range(200):
            board.batch("orders_search", batch(number))

    threads = [threading.Thread(target=deliver) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counted(only(board).totals.received) == {"insert": 800}
