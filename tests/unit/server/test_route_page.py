"""The page of a route."""

import re
from datetime import timedelta

import pytest

from cdf_replicator.monitoring.status import Definition, VerificationStatus
from cdf_replicator.monitoring.status_store import StatusStore
from cdf_replicator.monitoring.totals import BatchStatus
from cdf_replicator.server.pages import actions, settings
from cdf_replicator.server.pages import route as route_page
from cdf_replicator.settings.effective import Setting
from tests.unit.boards import START, deliver
from tests.unit.server.markup import rows, text

ROUTE = "orders_search"
DEFINITION = Definition("s3a://lake/orders", "index orders", "upsert", ("id", "day"), "a <> 1", None)


@pytest.fixture
def board(clock):
    """Two routes that run and have delivered twelve batches each, the last one up to version 12."""
    board = StatusStore(clock)
    deliver(board, version=12, at=START)
    return board


def page(board, *, with_actions=True, submitted=()):
    status = board.snapshot()
    route = route_page.find(status, ROUTE)
    offers = actions.offers(route) if with_actions else None
    return route_page.render(board, status, route, offers, submitted).body.decode()


@pytest.mark.parametrize("state", ["halted", "stalled", "retrying"])
def test_error_is_shown_as_present_only_while_it_is_the_reason(board, state):
    board.failed(ROUTE, "connection refused", "unreachable", "start it")
    board.state(ROUTE, state, "connection refused")
    shown = page(board)
    assert "<strong>connection refused</strong>" in shown
    assert "Next step: start it" in shown
    assert "Last error" not in shown
    board.state(ROUTE, state, "nothing has moved for 60 s")
    shown = page(board)
    assert '<p class="reason">nothing has moved for 60 s</p>' in shown
    assert "<strong>connection refused</strong>" not in shown
    assert re.search(r"Last error, [^:]+ ago: connection refused", shown)


def test_numbers_of_the_route_are_at_the_top(board, clock):
    board.update(ROUTE, source_version=1015, oldest_undelivered_commit_at=START, dead_letters=3)
    board.update(ROUTE, headroom_seconds=timedelta(days=6, hours=4).total_seconds())
    clock.tick(90)
    shown = text(page(board))
    assert "Lag 1 min 30 s 1,003 versions" in shown
    assert "Version delivered 12 of 1,015 in the source" in shown
    assert "Rows delivered — last 1 min 30 s ago" in shown
    assert "Dead letters 3 open" in shown
    assert "Headroom 6 d 4 h history kept until 7 May 16:01" in shown
    board.update(ROUTE, headroom_seconds=0.0)
    assert "Headroom 0 s history may be gone" in text(page(board))


def test_loading_snapshot_is_not_a_delivered_version(board, clock):
    board.state(ROUTE, "bootstrapping")
    board.update(ROUTE, delivered_version=-1)
    assert "Version delivered none yet of 12 in the source" in text(page(board))
    assert "Loading a snapshot · 0 % · time left not known yet" in text(page(board))
    clock.tick(100)
    board.update(ROUTE, bootstrap_progress=0.25)
    assert "Loading a snapshot · 25 % · about 5 min left" in text(page(board))
    assert '<progress max="1" value="0.25">' in page(board)


@pytest.mark.parametrize("state", ["halted", "retrying", "paused"])
def test_load_that_has_stopped_shows_no_bar_and_no_estimate(board, clock, state):
    board.state(ROUTE, "bootstrapping")
    clock.tick(100)
    board.update(ROUTE, bootstrap_progress=0.99)
    board.state(ROUTE, state, "too many orphans")
    shown = page(board)
    assert "The load stopped at 99 %" in text(shown)
    assert not any(words in shown for words in ("Loading a snapshot", "<progress", "about 1 s left"))


def test_running_replay_shows_progress_and_time_left(board, clock):
    board.replay(ROUTE, 3, 1009, 0.0)
    clock.tick(60)
    board.replay(ROUTE, 3, 1009, 0.5)
    assert "Replaying versions 3 to 1,009 · 50 % · about 1 min left · for 1 min" in text(page(board))
    assert '<progress max="1" value="0.5">' in page(board)


def test_history_begins_with_the_process(board, clock):
    shown = page(board)
    assert "History since 12:00:00 UTC, when this process started" in text(shown)
    assert shown.count("no samples") == 12, "six captions and six labels"
    board.history.sample(board.snapshot())
    clock.tick(60)
    board.history.sample(board.snapshot())
    shown = page(board)
    assert 'aria-label="Lag, last hour: now 0 s, least 0 s, most 0 s"' in shown
    assert 'aria-label="Rows delivered per second, last day: now 201, least 201, most 201"' in shown
    clock.tick(86_400)
    assert "since 1 May 12:00 UTC" in page(board)


def test_counts_add_up(board):
    counts = {"insert": 1200, "update_preimage": 7, "update_postimage": 7, "delete": 3}
    batch = BatchStatus(
        12, (12, 12), counts, {}, "delivered", START, applied={"insert": 1100, "delete": 2}, stale=5, noop=10
    )
    board.batch(ROUTE, batch)
    shown = rows(page(board), "counts")
    assert shown[0] == "Received 13,283 0 13,266 7 7 3"
    assert shown[1] == "= Applied 1,102 0 1,100 0 0 2"
    numbers = [int(re.search(r"([\d,]+)(?: [\d,]+){0}$", row)[1].replace(",", "")) for row in shown[2:]]
    assert 1102 + sum(numbers) == 13_283


def test_batch_shows_its_counts_and_how_long_each_phase_took(board):
    seconds = {"prepare": 1.0, "write": 2.5, "record": 0.5}
    batch = BatchStatus(
        12, (13, 14), {"insert": 9}, seconds, "failed", START, applied={"insert": 1}, latency_seconds=0.5
    )
    board.batch(ROUTE, batch)
    row = next(row for row in re.findall(r"<tr>.*?</tr>", page(board), re.DOTALL) if "<td>12</td>" in row)
    bars = re.findall(r'<rect class="(\w+)" x="([\d.]+)" width="([\d.]+)" height="10"><title>([^<]+)', row)
    assert bars == [
        ("prepare", "0.0", "40.0", "prepare: 1 s"),
        ("write", "40.0", "100.0", "write: 2.5 s"),
        ("record", "140.0", "20.0", "record: 0.5 s"),
    ]
    assert text(row).startswith("12 13\N{EN DASH}14 9 1 0 0 0 0 0.5 s 4 s")
    assert text(row).endswith("failed 12:00:00")


def test_route_without_a_batch_says_so(clock):
    board = StatusStore(clock)
    board.add_route(ROUTE, "orders", "search")
    shown = text(page(board))
    assert "No batch yet." in shown
    assert "No events yet." in shown
    assert "replay orders_search --starting-version 0" in shown


def test_definition_and_all_settings_of_the_route_are_shown(board):
    board.update(ROUTE, definition=DEFINITION)
    board.update(ROUTE, generation=2, epoch=1, checkpoint="/state/routes/orders_search/checkpoints/2")
    board.set_settings(
        [
            Setting("CDF_ROUTES__ORDERS_SEARCH__RENAME", "routes.orders_search.rename", "a=b", "environment"),
            Setting("CDF_ROUTES__ORDERS_SEARCH__INDEX", "routes.orders_search.index", "orders", "default"),
            Setting("CDF_TABLES__ORDERS__KEYS", "tables.orders.keys", "id,day", "yaml"),
            Setting("CDF_SINKS__SEARCH__HOSTS", "sinks.search.hosts", "http://search:1", "environment"),
            Setting("CDF_ROUTES__ORDERS_CACHE__FILTER", "routes.orders_cache.filter", "of another", "environment"),
        ]
    )
    shown = page(board)
    assert "Source s3a://lake/orders Target index orders Mode upsert: the last change of each key" in text(shown)
    assert "Keys id, day Filter a <> 1 Columns all Checkpoint /state/routes/orders_search/checkpoints/2" in text(shown)
    assert "generation 2, epoch 1, 0 restarts" in text(shown)
    assert rows(shown, "settings") == [
        "CDF_ROUTES__ORDERS_SEARCH__RENAME a=b environment",
        "CDF_ROUTES__ORDERS_SEARCH__INDEX orders default",
        "CDF_TABLES__ORDERS__KEYS id,day yaml",
        "CDF_SINKS__SEARCH__HOSTS http://search:1 environment",
    ]
    assert '<code class="command">cdf-replicator resync orders_search</code>' in shown


def test_settings_of_spark_have_their_names(board):
    board.set_settings(
        [
            Setting("CDF_SPARK__CONF", "spark.conf[spark.driver.memory]", "1g", "environment"),
            Setting("CDF_LOG__LEVEL", "log.level", "info", "default"),
        ]
    )
    shown = settings.render(board).body.decode()
    assert rows(shown, "settings") == [
        "CDF_SPARK__CONF spark.conf[spark.driver.memory] 1g environment",
        "CDF_LOG__LEVEL info default",
    ]
    assert "1 value given, 1 default." in text(shown)


def test_last_comparison_is_shown_with_its_command(board, clock):
    assert "compared" not in text(page(board))
    board.update(ROUTE, verify_deadline=START)
    assert "Target not compared yet" in text(page(board))
    board.update(ROUTE, verification=VerificationStatus(1041, START, 3.0, 0, {"missing": 0, "extra": 0}))
    clock.at += timedelta(minutes=12)
    assert "Target compared with version 1,041, 12 min ago: equal, in 3 s cdf-replicator verify" in text(page(board))
    differences = {"missing": 2, "extra": 0, "different": 1000, "foreign": 0}
    board.update(ROUTE, verification=VerificationStatus(1041, START, 3.0, 7, differences))
    assert "ago: missing 2 · different 1,000 , 7 keys left out, in 3 s cdf-replicator verify" in text(page(board))


def test_only_events_of_the_route_are_shown(board):
    board.event("its own", ROUTE)
    board.event("of another", "orders_cache")
    assert rows(page(board), "events") == ["12:00:00 its own", "12:00:00 starting → running"]


def test_actions_are_offered_or_say_why_not(board):
    shown = page(board)
    for action in ("pause", "replay", "resync"):
        assert f'<a class="button" href="orders_search/actions/{action}">' in shown
    assert "Resume : The route is neither paused nor halted." in text(shown)
    assert "Redrive : The route has no open dead letter." in text(shown)
    assert "Actions are off. CDF_HTTP__TOKEN (or CDF_HTTP__TOKEN_FILE) enables them." in page(board, with_actions=False)


def offered(board):
    return {offer.action for offer in actions.offers(route_page.find(board.snapshot(), ROUTE)) if not offer.refusal}


def test_actions_follow_the_state_and_the_sink(board):
    assert offered(board) == {"pause", "replay", "resync", "verify"}
    board.update(ROUTE, dead_letters=1)
    assert offered(board) == {"pause", "replay", "resync", "verify", "redrive", "discard"}
    board.state(ROUTE, "paused")
    assert offered(board) == {"resume", "discard"}
    board.state(ROUTE, "halted")
    board.update(ROUTE, definition=Definition("s", "t", "append", (), None, None))
    assert offered(board) == {"pause", "resume", "replay", "resync", "discard"}


def test_messages_are_escaped(board):
    board.failed(ROUTE, "<script>alert(1)</script>", "x", "`<img src=x>`")
    board.state(ROUTE, "halted", "<b>")
    board.event("<img>", ROUTE)
    board.update(ROUTE, definition=Definition("<img>", "<img>", "upsert", ("<img>",), "<img>", ("<img>",)))
    shown = page(board)
    assert "<script>alert" not in shown
    assert "<img" not in shown
    assert "<code>&lt;img src=x&gt;</code>" in shown


def test_nearest_name_is_offered_for_an_unknown_route(board):
    missing = route_page.missing(board.snapshot(), "orders_serch")
    assert missing.status_code == 404
    assert 'The nearest name is <a href="../routes/orders_search">orders_search</a>' in missing.body.decode()
    other = route_page.missing(board.snapshot(), "<script>")
    assert "nearest" not in other.body.decode()
    assert "<strong>&lt;script&gt;</strong>" in other.body.decode()
