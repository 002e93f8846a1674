"""The page shows the status in words."""

import re
from datetime import timedelta
from html import unescape

import pytest

from cdf_replicator.monitoring.status import Definition, VerificationStatus
from cdf_replicator.monitoring.status_store import EVENTS_SHOWN, StatusStore
from cdf_replicator.monitoring.totals import BatchStatus
from cdf_replicator.server.page import duration, number, prose, render
from cdf_replicator.settings.effective import Setting
from tests.unit.boards import START, deliver


@pytest.fixture
def empty(clock):
    return StatusStore(clock)


@pytest.fixture
def board(empty):
    """Two routes that run and have delivered twelve batches each, the last one up to version 12."""
    deliver(empty, version=12, at=START)
    return empty


def page(board):
    return render(board.snapshot(), "nonce")


def card(board, route="orders_search"):
    """The markup of a route's card."""
    shown = page(board)
    begin = shown.index(f'aria-labelledby="route-{route}"')
    return shown[begin : shown.index("</article>", begin)]


def text(markup):
    """Return the visible text in one line."""
    words = re.sub(r"<style.*?</style>|<script.*?</script>|<title>.*?</title>|<[^>]*>", " ", markup, flags=re.DOTALL)
    return " ".join(unescape(words).split())


def test_states_have_readable_names(board):
    shown = page(board)
    assert "All routes are running." in shown
    assert shown.count('<span class="badge running">Running</span>') == 2
    assert shown.count('<span class="badge up">Up</span>') == 2
    assert "Spark 4.2.0" in shown
    assert "secret" not in shown


def test_worst_route_comes_first_with_its_next_step(board):
    board.failed("orders_search", "the keys changed", "route_changed", "run `cdf-replicator resync orders_search`")
    board.state("orders_search", "halted")
    shown = page(board)
    assert shown.index('id="route-orders_search"') < shown.index('id="route-orders_cache"')
    assert "Next step: run <code>cdf-replicator resync orders_search</code>" in shown


@pytest.mark.parametrize("state", ["halted", "stalled", "retrying"])
def test_error_is_shown_as_present_only_while_it_is_the_reason(board, state):
    board.failed("orders_search", "connection refused", "unreachable", "start it")
    board.state("orders_search", state, "connection refused start it")
    shown = card(board)
    assert "<strong>connection refused</strong>" in shown
    assert "Last error" not in shown
    assert "connection refused start it" not in shown, "said twice"
    board.state("orders_search", state, "nothing has moved for 60 s")
    shown = card(board)
    assert "nothing has moved for 60 s" in shown
    assert "<strong>connection refused</strong>" not in shown
    assert re.search(r"Last error, [^:]+ ago: connection refused", shown)


def test_card_shows_lag_versions_and_rate(board, clock):
    board.update("orders_search", source_version=1015, oldest_undelivered_commit_at=START)
    board.update("orders_search", input_rows_per_second=1250.4, processed_rows_per_second=7.25)
    clock.at += timedelta(seconds=90)
    shown = text(card(board))
    assert "Lag 1 min 30 s 1,003 versions" in shown
    assert "Version delivered 12 of 1,015 in the source" in shown
    assert "Rows per second 7.2 1,250 arriving" in shown
    assert "Worst lag 1 min 30 s 1,003 versions" in text(page(board))


def test_loading_snapshot_is_not_a_delivered_version(board):
    board.update("orders_search", delivered_version=-1)
    assert "Version delivered none yet of 12 in the source" in text(card(board))


def test_each_batch_is_a_bar_scaled_by_rows_and_coloured_by_outcome(board):
    board.batch("orders_search", BatchStatus(12, None, {"insert": 2022}, {"write": 1.0}, "failed", START))
    bars = re.findall(r'<rect class="(\w+)" x="([\d.]+)" y="([\d.]+)" width="[\d.]+" height="([\d.]+)">', card(board))
    heights = [(kind, float(height)) for kind, _, _, height in bars if kind in ("delivered", "failed")]
    assert len(heights) == 13
    assert heights[-1] == ("failed", 28.0)
    assert heights[-2] == ("delivered", 14.0)
    places = [float(x) for kind, x, _, _ in bars if kind in ("delivered", "failed")]
    assert places == sorted(places)
    assert "<title>batch 12: 2,022 rows, failed</title>" in card(board)


def test_a_batch_shows_how_long_each_phase_took(board):
    board.batch(
        "orders_search",
        BatchStatus(12, (13, 13), {"insert": 1}, {"prepare": 1.0, "write": 2.5, "record": 0.5}, "delivered", START),
    )
    row = next(row for row in re.findall(r"<tr>.*?</tr>", card(board), re.DOTALL) if "<td>12</td>" in row)
    bars = re.findall(r'<rect class="(\w+)" x="([\d.]+)" y="0" width="([\d.]+)" height="10"><title>([^<]+)', row)
    assert bars == [
        ("prepare", "0.0", "40.0", "prepare: 1 s"),
        ("write", "40.0", "100.0", "write: 2.5 s"),
        ("record", "140.0", "20.0", "record: 0.5 s"),
    ]
    assert "4 s" in text(row)


def test_headroom_and_dead_letters_are_shown(board):
    assert "Headroom — not known yet" in text(card(board))
    board.update("orders_search", headroom_seconds=timedelta(days=6, hours=4).total_seconds(), headroom_versions=40)
    board.update("orders_search", dead_letters=3)
    assert "Headroom 6 d 4 h history kept until 7 May 16:00" in text(card(board))
    assert "3 dead letters open" in text(card(board))
    assert "cdf-replicator dead-letters list orders_search" in text(card(board))
    assert "Dead letters 3 open" in text(page(board))
    board.update("orders_search", headroom_seconds=0.0, headroom_versions=0)
    assert "Headroom 0 s history may be gone" in text(card(board))


def test_unknown_lag_differs_from_zero_lag(board, clock):
    board.add_route("items_search", "items", "search")
    assert "Worst lag 0 s 0 versions, 1 route not known" in text(page(board))
    board.update("orders_search", source_version=14, oldest_undelivered_commit_at=START)
    clock.at += timedelta(seconds=5)
    assert "Worst lag 5 s 2 versions, 1 route not known" in text(page(board))


def test_lag_is_unknown_at_first(empty):
    empty.add_route("items_search", "items", "search")
    assert "Worst lag — 1 route not known" in text(page(empty))


def test_errors_of_the_last_hour_and_restarts_are_counted(board):
    board.failed("orders_search", "no answer", "unreachable", "wait")
    board.failed("orders_cache", "no answer", "unreachable", "wait")
    board.restarted("orders_search", "spark")
    assert "Errors, last hour 2 1 restart since start" in text(page(board))


def test_card_shows_its_last_batch_and_changes_by_operation(board):
    counts = {"delete": 3, "insert": 1200, "update_preimage": 7, "update_postimage": 7}
    board.batch("orders_search", BatchStatus(12, (12, 12), counts, {"write": 0.5}, "delivered", START, applied=counts))
    shown = text(card(board))
    assert "Last batch 1,217 rows number 12, delivered in 0.5 s" in shown
    assert "Applied since start 1,217 1,200 inserted · 7 updated · 7 preimages · 3 deleted" in shown
    assert "12 12 1,217 1,200 7 3 0.5 s delivered 12:00:00" in shown


def test_details_show_the_definition_of_the_route_and_its_commands(board):
    definition = Definition("s3a://lake/orders", "index orders", "upsert", ("id", "day"), "a <> 1", None)
    board.update("orders_search", definition=definition)
    board.update("orders_search", generation=2, epoch=1, checkpoint="/state/routes/orders_search/checkpoints/2")
    shown = text(card(board))
    assert "Source s3a://lake/orders Target index orders Mode upsert: the last change of each key" in shown
    assert "Keys id, day Filter a <> 1 Columns all Checkpoint /state/routes/orders_search/checkpoints/2" in shown
    assert "generation 2, epoch 1, 0 restarts" in shown
    assert '<code class="command">cdf-replicator replay orders_search --starting-version 12</code>' in card(board)
    assert '<code class="command">cdf-replicator resync orders_search</code>' in card(board)


@pytest.mark.parametrize("delivered", [None, -1, 0])
def test_replay_is_offered_from_an_existing_version(empty, delivered):
    empty.add_route("orders_search", "orders", "search")
    if delivered is not None:
        empty.update("orders_search", delivered_version=delivered)
    assert "replay orders_search --starting-version 0</code>" in card(empty)


def test_sink_shows_request_times_and_rejections_of_all_routes(board):
    board.add_route("items_search", "items", "search")
    for route in ("items_search", "orders_search"):
        board.batch(route, BatchStatus(12, None, {}, {}, "delivered", START, rejected={"mapping": 2}))
        board.update(route, dead_letters=1)
    board.requests("orders_search", [0.0042] * 99 + [1.5], {"timeout": 6}, 0)
    assert "Up search elasticsearch http://search:1 4.2 ms / 4.2 ms 6 4 2 0 s" in text(page(board))
    assert "Up cache redis http://cache:1 — 0 0 0 0 s" in text(page(board))


def test_events_and_settings_with_their_origin_are_shown(board):
    board.event("the table's schema changed", "orders_search")
    board.set_settings(
        [
            Setting("CDF_TRIGGER_SECONDS", "trigger_seconds", "0.2", "environment"),
            Setting("CDF_LOG__LEVEL", "log.level", "info", "default"),
        ]
    )
    shown = text(page(board))
    assert "12:00:00 orders_search the table's schema changed" in shown
    assert "1 value given, 1 default" in shown
    assert "CDF_TRIGGER_SECONDS 0.2 environment" in shown


def test_every_kept_event_is_shown_with_date_if_not_today(empty, clock):
    for number_ in range(EVENTS_SHOWN):
        empty.event(f"event {number_}!")
    clock.at += timedelta(days=1)
    shown = text(page(empty))
    assert f"1 May 12:00 event {EVENTS_SHOWN - 1}! 1 May 12:00" in shown
    assert shown.count("!") == EVENTS_SHOWN


def test_running_replay_shows_its_progress(board):
    board.replay("orders_search", 3, 1009, 0.5)
    assert "Replaying versions 3 to 1,009 · 50 %" in text(card(board))
    assert '<progress max="1" value="0.5">' in card(board)


def test_card_shows_the_last_comparison_and_its_command(board, clock):
    assert "compared" not in text(card(board))
    board.update("orders_search", verify_deadline=START)
    assert "Target not compared yet" in text(card(board))
    board.update("orders_search", verification=VerificationStatus(1041, START, 3.0, 0, {"missing": 0, "extra": 0}))
    clock.at += timedelta(minutes=12)
    assert "Target compared with version 1,041, 12 min ago: equal cdf-replicator verify orders_search" in text(
        card(board)
    )
    differences = {"missing": 2, "extra": 0, "different": 1000, "foreign": 0}
    board.update("orders_search", verification=VerificationStatus(1041, START, 3.0, 0, differences))
    assert "ago: missing 2 · different 1,000 cdf-replicator verify" in text(card(board))


def test_state_before_any_batch_is_shown(empty):
    empty.add_route("orders_search", "orders", "search")
    empty.add_sink("search", "elasticsearch", "http://search")
    shown = text(page(empty))
    assert "No batch yet" in shown
    assert "Not contacted yet" in shown


def test_page_without_routes_is_rendered(empty):
    assert "No routes yet." in page(empty)


def test_message_of_a_server_is_escaped(board):
    board.failed("orders_search", "<script>alert(1)</script>", "x", "`<img src=x>`")
    board.state("orders_search", "halted", "<b>")
    shown = page(board)
    assert "<script>alert" not in shown
    assert "<img" not in shown
    assert "<b>" not in card(board)
    assert "<code>&lt;img src=x&gt;</code>" in shown


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (None, "—"),
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


@pytest.mark.parametrize(("value", "said"), [(None, "—"), (0, "0"), (1.25, "1.2"), (12345.6, "12,346")])
def test_numbers_are_grouped(value, said):
    assert number(value) == said


def test_only_text_between_backticks_is_code():
    assert prose("run `a b` & see") == "run <code>a b</code> &amp; see"
