"""The page of all routes: a table, worst first, grouped, filtered and searched."""

import re
from datetime import timedelta

import pytest

from cdf_replicator.monitoring.status import STATES
from cdf_replicator.monitoring.status_store import StatusStore
from cdf_replicator.monitoring.totals import BatchStatus
from cdf_replicator.server.pages.overview import EVENTS_SHOWN, LONGEST_SEARCH, Query, render
from tests.unit.boards import START, deliver
from tests.unit.crowd import crowd
from tests.unit.server.markup import rows, text


@pytest.fixture
def empty(clock):
    return StatusStore(clock)


@pytest.fixture
def board(empty):
    """Two routes that run and have delivered twelve batches each, the last one up to version 12."""
    deliver(empty, version=12, at=START)
    return empty


@pytest.fixture(scope="module")
def many():
    return crowd()


def page(board, group="", state="", search=""):
    return render(board, Query.of(group, state, search)).body.decode()


def row(board, route="orders_search"):
    return next(row for row in rows(page(board)) if f" {route} " in row)


def test_healthy_service_says_so(board):
    shown = page(board)
    assert "All routes are running." in shown
    assert shown.count('<span class="badge running">Running</span>') == 2
    assert shown.count('<span class="badge up">Up</span>') == 2
    assert "<title>Healthy · cdf-replicator</title>" in shown
    assert "Spark 4.2.0" in shown
    assert "secret" not in shown


def test_row_has_lag_rate_latency_letters_and_headroom(board, clock):
    assert row(board) == "Running orders_search orders → search 0 s — — 0 —"
    board.update("orders_search", source_version=1015, oldest_undelivered_commit_at=START, dead_letters=3)
    board.update("orders_search", headroom_seconds=timedelta(days=6, hours=4).total_seconds())
    board.history.sample(board.snapshot())
    clock.tick(5)
    board.batch(
        "orders_search", BatchStatus(12, None, {"insert": 300}, {}, "delivered", clock(), latency_seconds=0.418)
    )
    for _ in range(17):
        board.history.sample(board.snapshot())
        clock.tick(5)
    board.history.sample(board.snapshot())
    assert row(board) == "Running orders_search orders → search 1 min 30 s 0 0.42 s 3 6 d 4 h"
    shown = page(board)
    assert shown.count('<path d="M') == 2
    assert '<a class="warn" href="routes/orders_search#letters">3</a>' in shown
    assert "Worst lag 1 min 30 s 1,003 versions" in text(shown)
    assert "Rows delivered 0/s last minute" in text(shown)


def test_rate_is_the_mean_of_the_last_minute(board, clock):
    board.history.sample(board.snapshot())
    for _ in range(12):
        clock.tick(5)
        board.batch("orders_search", BatchStatus(12, None, {"insert": 30}, {}, "delivered", clock()))
        board.history.sample(board.snapshot())
    assert row(board) == "Running orders_search orders → search 0 s 207 — 0 —"
    for _ in range(2):
        clock.tick(5)
        board.history.sample(board.snapshot())
    assert "Rows delivered 5.5/s last minute" in text(page(board))


def test_open_dead_letters_of_a_healthy_service_are_in_its_headline(board):
    board.update("orders_search", dead_letters=6)
    shown = page(board)
    assert '<span class="badge letters">Healthy, 6 open dead letters</span>' in shown
    assert "<title>Healthy, 6 open dead letters · cdf-replicator</title>" in shown
    assert "Dead letters 6 open" in text(shown)


def test_service_with_a_halted_route_is_red(board):
    board.state("orders_search", "halted", "the keys changed")
    board.update("orders_cache", dead_letters=1)
    assert '<span class="badge failed">Failed, 1 route halted, 1 open dead letter</span>' in page(board)


@pytest.mark.parametrize("state", ["retrying", "stalled"])
def test_service_with_a_route_in_trouble_is_amber(board, state):
    board.state("orders_search", state)
    assert '<span class="badge degraded">Degraded</span>' in page(board)


def test_service_that_loads_a_snapshot_says_so(board):
    board.state("orders_search", "bootstrapping")
    assert '<span class="badge healthy">Healthy, loading 1 route</span>' in page(board)


@pytest.mark.parametrize("state", STATES)
def test_each_state_is_a_word_with_a_class_of_its_own(board, state):
    board.state("orders_search", state)
    assert f'<span class="badge {state}">{state.capitalize()}</span>' in page(board)


def test_failing_route_comes_first_with_its_error_and_next_step(board):
    board.failed("orders_search", "the keys changed", "route_changed", "run `cdf-replicator resync orders_search`")
    board.state("orders_search", "halted", "the keys changed")
    first, error, second = rows(page(board))
    assert first.startswith("Halted orders_search")
    assert error == "the keys changed Next step: run cdf-replicator resync orders_search"
    assert second.startswith("Running orders_cache")
    board.state("orders_search", "halted", "a newer reason")
    assert rows(page(board))[1] == "a newer reason"


def test_loads_and_replays_show_progress_and_time_left(board, clock):
    board.state("orders_search", "bootstrapping")
    board.replay("orders_cache", 3, 1009, 0.5)
    clock.tick(100)
    board.update("orders_search", bootstrap_progress=0.25)
    shown = rows(page(board))
    assert "Loading a snapshot · 25 % · about 5 min left" in shown
    assert "Replaying versions 3 to 1,009 · 50 % · about 1 min 40 s left" in shown


def test_fifty_routes_are_in_one_table_worst_first(many):
    shown = [row for row in rows(page(many)) if "→" in row]
    assert len(shown) == 50
    assert [row.split()[0] for row in shown[:9]] == [
        *("Halted", "Halted", "Stalled", "Retrying", "Retrying", "Starting"),
        *("Bootstrapping", "Bootstrapping", "Paused"),
    ]
    assert {row.split()[0] for row in shown[10:]} == {"Running"}


def test_routes_are_grouped_by_sink_or_table_worst_group_first(many):
    by_sink = re.findall(r'scope="rowgroup"[^>]*>(\w+) <span class="quiet">([^<]+)', page(many, group="sink"))
    assert by_sink == [("copy", "12 routes"), ("search", "13 routes"), ("cache", "12 routes"), ("audit", "13 routes")]
    assert len(re.findall('scope="rowgroup"', page(many, group="table"))) == 13
    assert "rowgroup" not in page(many, group="nothing")


@pytest.mark.parametrize(
    ("state", "number"),
    [("halted", 2), ("running", 40), ("attention", 5), ("dead-letters", 2), ("stopped", 1), ("absent", 50), ("", 50)],
)
def test_routes_are_selected_by_state(many, state, number):
    shown = page(many, state=state)
    assert len([row for row in rows(shown) if "→" in row]) == number
    selected = re.findall(r'<option value="([^"]*)" selected>', shown)
    assert selected == ([state, ""] if state != "absent" else ["", ""])


@pytest.mark.parametrize(("search", "number"), [("CART", 2), ("audit", 13), (" items_copy ", 1), ("100%", 0)])
def test_search_finds_parts_of_names(many, search, number):
    shown = page(many, search=search)
    assert len([row for row in rows(shown) if "→" in row]) == number
    assert ("No route is selected." in shown) is (number == 0)
    assert f'name="q" value="{search.strip()}"' in shown


def test_search_is_escaped_and_cut(board):
    shown = page(board, search='"><script>alert(1)</script>' + "x" * 1000)
    assert "<script>alert" not in shown
    assert "x" * LONGEST_SEARCH not in shown


def test_names_with_markup_are_escaped(empty):
    name = "<b>&\"'/x"
    empty.add_sink("<i>", "<u>", "http://<s>")
    empty.add_route(name, "<table>", "<i>")
    empty.event("<img>", name)
    empty.failed(name, "<script>alert(1)</script>", "x", "`<img src=x>`")
    empty.state(name, "halted", "<script>alert(1)</script>")
    shown = page(empty, group="table")
    for markup in ("<b>&", "<i>", "<u>", "<s>", "<table>", "<script>alert", "<img"):
        assert markup not in shown.replace("<b>1", "").replace("<b>0", "")
    assert 'href="routes/%3Cb%3E%26%22%27%2Fx"' in shown
    assert "<code>&lt;img src=x&gt;</code>" in shown


def test_page_without_routes_is_rendered(empty):
    assert "No routes yet." in page(empty)
    assert "No events yet." in page(empty)


def test_lag_is_unknown_at_first_and_not_zero(board, empty):
    empty.add_route("items_search", "items", "search")
    assert "Worst lag 0 s 0 versions, 1 route not known" in text(page(board))


def test_errors_of_the_last_hour_and_restarts_are_counted(board):
    board.failed("orders_search", "no answer", "unreachable", "wait")
    board.failed("orders_cache", "no answer", "unreachable", "wait")
    board.restarted("orders_search", "spark")
    assert "Errors, last hour 2 1 restart since start" in text(page(board))


def test_sink_shows_request_times_and_rejections_of_all_routes(board):
    board.add_route("items_search", "items", "search")
    for route in ("items_search", "orders_search"):
        board.batch(route, BatchStatus(12, None, {}, {}, "delivered", START, rejected={"mapping": 2}))
        board.update(route, dead_letters=1)
    board.requests("orders_search", [0.0042] * 99 + [1.5], {"timeout": 6}, 0)
    assert rows(page(board), "sinks") == [
        "Up search elasticsearch http://search:1 4.2 ms / 4.2 ms 6 4 2 0 s",
        "Up cache redis http://cache:1 — 0 0 0 0 s",
    ]
    board.sink_down("cache", "no answer", "unreachable", "start it")
    assert rows(page(board), "sinks")[1:] == ["Down cache redis http://cache:1 — 0 0 0 0 s", "no answer start it"]


def test_sink_without_a_request_is_neither_up_nor_down(empty):
    empty.add_sink("search", "elasticsearch", "")
    assert rows(page(empty), "sinks") == ["Not contacted yet search elasticsearch — — 0 0 0 0 s"]


def test_latest_events_link_to_their_routes_with_date_if_not_today(board, clock):
    for number in range(EVENTS_SHOWN):
        board.event(f"event {number}", "orders_search")
    clock.at += timedelta(days=1)
    board.event("the last")
    shown = rows(page(board), "events")
    assert shown[:2] == ["12:00:00 the last", f"1 May 12:00 orders_search event {EVENTS_SHOWN - 1}"]
    assert len(shown) == EVENTS_SHOWN
    assert '<a href="routes/orders_search">orders_search</a></td><td>event 3' in page(board)
