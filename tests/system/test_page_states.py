"""The pages in a real browser, of a store in each state, with fifty routes; pictures are kept in .cache/screenshots."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from cdf_replicator.monitoring.metrics import Metrics
from cdf_replicator.monitoring.status_store import StatusStore
from cdf_replicator.queries.answer import End, Values
from cdf_replicator.server import Queries, server
from cdf_replicator.server.control import Control
from cdf_replicator.state import command_queue
from cdf_replicator.state.storage_path import LocalPath
from cdf_replicator.state.store import StateStore
from tests.system.browser import PHONE, WIDE, fits, looked_at, opened, photograph
from tests.unit.boards import START, Clock, deliver
from tests.unit.crowd import STATES, crowd, named
from tests.unit.server.answers import Handler, Running

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from playwright.sync_api import Browser

TOKEN = "0123456789abcdef0123456789abcdef"
ROUTES = 50


@contextmanager
def served(board: StatusStore, folder: Path, queries: Queries | None = None) -> Iterator[str]:
    control = Control(TOKEN, [route.route for route in board.snapshot().routes], board)
    control.open_to(StateStore.open(LocalPath(folder)))
    running = server.start(board, Metrics(board), "127.0.0.1", 0, lambda: None, control, (), queries)
    yield f"http://127.0.0.1:{running.port}"
    running.stop()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pages") / "state"


@pytest.fixture(scope="module")
def crowded(folder: Path) -> Iterator[str]:
    """Fifty routes in every state, with an hour of history."""
    with served(crowd(ROUTES), folder) as url:
        yield url


@pytest.fixture
def small() -> StatusStore:
    board = StatusStore(Clock())
    deliver(board, version=12, at=START)
    return board


def path(number: int) -> str:
    """The path of the page of a route of the crowd."""
    return f"/routes/{named(number)[0]}"


def test_fifty_routes_are_on_two_screens(crowded: str, browser: Browser):
    looked_at(browser, crowded, "fifty", showing="50")
    with opened(browser, crowded) as page:
        bottom = page.locator(".routes").evaluate("it => it.getBoundingClientRect().bottom")
        assert bottom <= 2 * WIDE["height"]
        assert page.get_by_role("rowheader").filter(has=page.locator("a")).count() == ROUTES


def test_routes_are_grouped_and_filtered_by_the_form(crowded: str, browser: Browser):
    with opened(browser, crowded) as page:
        page.get_by_label("State").select_option("attention")
        page.get_by_label("Group by").select_option("sink")
        page.get_by_role("button", name="Show").click()
        expect(page.locator(".routes th[scope=rowgroup]")).to_have_count(3)
        expect(page.locator(".routes td .badge")).to_have_text(["Halted", "Halted", "Retrying", "Stalled", "Retrying"])
        photograph(page, "attention-by-sink")
        page.get_by_role("link", name="Show all routes").click()
        expect(page.locator(".routes td .badge")).to_have_count(ROUTES)


@pytest.mark.parametrize("number", [5, 11, 32])
def test_page_of_a_route_in_every_theme(crowded: str, browser: Browser, number: int):
    state = STATES.get(number, "running")
    looked_at(browser, crowded + path(number), f"route-{state}", showing=state.capitalize())


@pytest.mark.parametrize("action", ["replay", "discard"])
def test_confirmation_in_every_theme(crowded: str, browser: Browser, action: str):
    looked_at(browser, f"{crowded}{path(5)}/actions/{action}", f"confirm-{action}", showing="What will happen")


def test_wrong_token_shows_the_form_again(crowded: str, browser: Browser, folder: Path):
    with browser.new_page() as page:  # its console names the 401
        page.goto(f"{crowded}{path(6)}/actions/pause")
        page.get_by_label("Token").fill("wrong")
        page.get_by_label("Token").press("Enter")
        expect(page.get_by_role("alert")).to_contain_text("Nothing was done.")
        expect(page.get_by_label("Token")).to_have_value("")
        photograph(page, "wrong-token")
        assert "wrong" not in page.url
        page.get_by_label("Token").fill(TOKEN)
        page.get_by_role("button", name="Pause").click()
        expect(page.locator(".commands")).to_contain_text("pause by http_token")
    (command,) = command_queue.pending(LocalPath(folder) / "requests")
    assert (command.kind, command.route) == ("pause", named(6)[0])


def test_healthy_service_with_dead_letters_is_amber(small: StatusStore, browser: Browser, tmp_path: Path):
    small.update("orders_search", dead_letters=6)
    with served(small, tmp_path / "state") as url:
        looked_at(browser, url, "dead-letters", showing="Healthy, 6 open dead letters")


def test_icon_has_the_colour_of_the_newest_state(small: StatusStore, browser: Browser, tmp_path: Path):
    with served(small, tmp_path / "state") as url, opened(browser, url) as page:
        icon = page.locator("link[rel=icon]")
        expect(icon).to_have_attribute("href", re.compile("2e8b57"))
        small.state("orders_search", "halted", "the index is gone")
        page.clock.run_for(6000)
        expect(page).to_have_title(re.compile("^Failed"))
        expect(icon).to_have_attribute("href", re.compile("c4382f"))


def test_dead_letters_are_listed_and_selected(small: StatusStore, browser: Browser, tmp_path: Path):
    small.update("orders_search", dead_letters=3)
    letters = tuple(
        {
            "id": digit * 64,
            "key": digit,
            "commit_version": 12,
            "code": "mapping",
            "reason": "failed to parse field [amount] of type [long] in document",
            "row": '{"id": 7, "name": "' + "a long value " * 20 + '"}',
            "created_at": "2026-05-01 11:58:03.123456",
        }
        for digit in "abc"
    )
    queries = Queries()
    queries._handler = Handler(Running(Values(letters), End()))
    with served(small, tmp_path / "state", queries) as url:
        looked_at(browser, f"{url}/routes/orders_search/dead-letters", "letters-token", "it needs the token")
        with opened(browser, f"{url}/routes/orders_search") as page:
            page.get_by_role("link", name="open").click()
            page.get_by_label("Token").fill(TOKEN)
            page.get_by_label("Token").press("Enter")
            expect(page.locator(".rejected")).to_contain_text("failed to parse")
            assert fits(page)
            for viewport, name in ((WIDE, "letters-light"), (PHONE, "letters-phone")):
                page.set_viewport_size(viewport)
                photograph(page, name)
                assert fits(page)
            page.get_by_label("Select bbbbbbbbbbbb").check()
            page.get_by_role("button", name="Discard the selected…").click()
            expect(page.get_by_label("Dead letters")).to_have_value("bbbbbbbbbbbb")


def test_service_without_routes_and_unknown_route(browser: Browser, tmp_path: Path):
    with served(StatusStore(Clock()), tmp_path / "state") as url:
        looked_at(browser, url, "empty", showing="No routes yet.")
        with browser.new_page() as page:  # its console names the 404
            page.goto(f"{url}/routes/absent")
            expect(page.locator("main")).to_contain_text("The service has no route absent")
            photograph(page, "missing")
