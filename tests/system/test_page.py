"""The pages in a real browser, of a real service that things happen to; pictures of it are kept in .cache/screenshots."""

from __future__ import annotations

import re
import shutil
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from tests.chaos.proxy import Proxy
from tests.support.service import Service, command, environment
from tests.support.source import Source
from tests.system.browser import looked_at, opened, photograph

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from playwright.sync_api import Browser, Page

    from deploy.local.servers import Redis

TOKEN = "0123456789abcdef0123456789abcdef"
ROUTES = ("orders_audit", "orders_cache", "items_audit")
ROWS = 1000
REPLAYED = 12
"""Commits, each a micro-batch of six seconds by the sink's limit: the replay lasts longer than the views of its pages."""
REFRESHED_MS = 15_000
REFRESH_MS = 5_000
"""Time from one refresh of a page's script to the next; some tests move the clock of the page on by it."""
CHARTS = ("Lag", "Rows delivered per second", "Commit to visible")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("page")


@pytest.fixture(scope="module")
def orders(folder: Path, new_source: Callable[..., Source]) -> Source:
    return new_source(folder, "orders", ROWS)


@pytest.fixture(scope="module")
def items(folder: Path, new_source: Callable[..., Source]) -> Source:
    return new_source(folder, "items")


@pytest.fixture(scope="module")
def service(folder: Path, orders: Source, items: Source, redis_server: Redis) -> Iterator[Service]:
    given = environment(
        folder,
        TRIGGER_SECONDS=0.2,
        HTTP__TOKEN=TOKEN,
        TABLES__ORDERS__PATH=orders.path,
        TABLES__ORDERS__KEYS="id",
        TABLES__ORDERS__SINKS="audit,cache",
        TABLES__ORDERS__MAX_FILES_PER_TRIGGER=1,
        TABLES__ITEMS__PATH=items.path,
        TABLES__ITEMS__KEYS="id",
        TABLES__ITEMS__SINKS="audit",
        SINKS__AUDIT__TYPE="delta_audit",
        SINKS__AUDIT__PATH=folder / "audit",
        SINKS__CACHE__TYPE="redis",
        SINKS__CACHE__URL=redis_server.url,
        SINKS__CACHE__CHUNK_ROWS=ROWS // 10,
        SINKS__CACHE__ROWS_PER_SECOND=ROWS // 10,
    )
    with Service(given).started() as started:
        for route in ROUTES:
            started.wait_state(route, "running")
        yield started


@pytest.fixture
def healthy(service: Service, orders: Source, items: Source) -> Service:
    for source, change in (
        (orders, "UPDATE {} SET amount = amount + 1 WHERE id < 5"),
        (items, "DELETE FROM {} WHERE id = 1"),
    ):
        source.change(change)
    for route, source in zip(ROUTES, (orders, orders, items), strict=True):
        service.wait_state(route, "running")
        service.wait_delivered(route, source.version)
    return service


def refreshed(page: Page, *, by_script: bool = True) -> None:
    """Wait until the page shows a later moment than now."""
    shown = page.locator("header time")
    before = str(shown.get_attribute("datetime"))
    if by_script:
        page.clock.fast_forward(REFRESH_MS)
    expect(shown).not_to_have_attribute("datetime", before, timeout=REFRESHED_MS)


def row(page: Page, route: str):
    """The row of a route in the table of all routes."""
    return page.locator(".routes tr", has=page.get_by_role("rowheader", name=route, exact=True))


def below(page: Page, route: str):
    """The row below it, with the error or the progress."""
    return row(page, route).locator("xpath=following-sibling::tr[1]")


def of(service: Service, route: str) -> str:
    return f"{service.url}/routes/{route}"


def test_pages_of_a_healthy_service_in_every_theme(healthy: Service, browser: Browser):
    looked_at(browser, healthy.url, "healthy")
    looked_at(browser, of(healthy, "orders_cache"), "healthy-route", showing="Commit to visible")
    looked_at(browser, f"{healthy.url}/settings", "settings", showing="CDF_SINKS__CACHE__ROWS_PER_SECOND")
    with opened(browser, healthy.url) as page:
        expect(page).to_have_title("Healthy · cdf-replicator")
        for route in ROUTES:
            expect(row(page, route)).to_contain_text("Running")
        page.get_by_role("link", name="orders_cache", exact=True).first.click()
        expect(page).to_have_title("Running · orders_cache · cdf-replicator")


def test_history_of_a_route_is_drawn(healthy: Service, browser: Browser, orders: Source):
    with opened(browser, of(healthy, "orders_cache")) as page:
        hour = [page.get_by_role("img", name=re.compile(f"{what}, last hour: now [0-9]")) for what in CHARTS]
        orders.change("UPDATE {} SET amount = amount + 1 WHERE id < 5")
        for chart in hour:
            expect(chart).to_be_visible(timeout=4 * REFRESHED_MS)
        photograph(page, "history")


def test_details_and_focus_stay_by_keyboard(healthy: Service, browser: Browser):
    with opened(browser, of(healthy, "items_audit")) as page:
        summary = page.locator("summary")
        for _ in range(40):
            page.keyboard.press("Tab")
            if summary.evaluate("it => it === document.activeElement"):
                break
        expect(summary).to_be_focused()
        page.keyboard.press("Enter")
        settings = page.get_by_role("cell", name="CDF_TABLES__ITEMS__KEYS", exact=True)
        expect(settings).to_be_visible()
        refreshed(page)
        expect(settings).to_be_visible()
        expect(summary).to_be_focused()


def test_selection_and_scroll_position_stay(healthy: Service, browser: Browser):
    with opened(browser, of(healthy, "items_audit"), viewport={"width": 700, "height": 900}) as page:
        batches = page.get_by_role("region", name="Batches of items_audit")
        batches.evaluate("it => it.scrollTo(40, 0)")
        refreshed(page)
        assert batches.evaluate("it => it.scrollLeft") == 40
        resync = "cdf-replicator resync items_audit"
        page.get_by_text(resync, exact=True).click()
        page.clock.fast_forward(REFRESH_MS)
        expect(page.get_by_role("status")).to_have_text("Waits while text is selected.", timeout=REFRESHED_MS)
        assert page.evaluate("getSelection().toString()") == resync
        page.evaluate("getSelection().empty()")
        refreshed(page)


def test_pages_need_no_script(healthy: Service, browser: Browser):
    with opened(browser, healthy.url, java_script_enabled=False) as page:
        photograph(page, "no-script")
        refreshed(page, by_script=False)
        expect(row(page, "orders_cache")).to_contain_text("Running")
        page.get_by_label("Search").fill("items")
        page.get_by_label("Search").press("Enter")
        expect(row(page, "items_audit")).to_be_visible()
        expect(row(page, "orders_cache")).to_have_count(0)
        page.get_by_role("link", name="items_audit", exact=True).first.click()
        expect(page.locator("h1")).to_have_text("items_audit")


def test_route_is_paused_and_resumed_by_forms(healthy: Service, browser: Browser):
    for action, state in (("Pause", "paused"), ("Resume", "running")):
        with opened(browser, of(healthy, "items_audit"), java_script_enabled=False) as page:
            page.get_by_role("link", name=f"{action}…").click()
            page.get_by_label("Token").fill(TOKEN)
            page.get_by_label("Token").press("Enter")
            expect(page.locator("h1")).to_have_text("items_audit")
            expect(page.locator(".commands")).to_contain_text(f"{action.lower()} by http_token")
        healthy.wait_state("items_audit", state)


def test_comparison_is_started_by_its_form_and_shows_its_numbers(healthy: Service, browser: Browser, orders: Source):
    with opened(browser, of(healthy, "orders_cache")) as page:
        page.get_by_role("link", name="Verify…").click()
        looked_at(browser, page.url, "verify-form", showing="Nothing is written, and the route continues.")
        page.get_by_label("Token").fill(TOKEN)
        page.get_by_role("button", name="Verify orders_cache").click()
        expect(page.locator("h1")).to_have_text("orders_cache")
        newest = page.locator(".commands tbody tr").first
        expect(newest).to_contain_text("verify by http_token")
        numbers = re.compile(rf"done\s*equal to version {orders.version} of the table; .* rows and .* entries compared")
        expect(newest).to_contain_text(numbers, timeout=6 * REFRESHED_MS)
        expect(page.locator("#top")).to_contain_text("Target compared with version", timeout=REFRESHED_MS)
        looked_at(browser, page.url, "verified", showing="equal to version")
    assert healthy.route("orders_cache")["verification"]["version"] == orders.version


def test_replay_shows_its_progress(healthy: Service, browser: Browser, orders: Source):
    first = orders.version
    for _ in range(REPLAYED):
        orders.change(f"UPDATE {{}} SET amount = amount + 1 WHERE id < {ROWS * 6 // 10}")
    with opened(browser, of(healthy, "orders_cache")) as page:
        page.get_by_role("link", name="Replay…").click()
        page.get_by_label("First version").fill(str(first))
        page.get_by_label("Token").fill(TOKEN)
        page.get_by_role("button", name="Dry run").click()
        planned = f"Versions {first} to {orders.version} of orders would be delivered again"
        expect(page.locator(".plan")).to_contain_text(planned, timeout=REFRESHED_MS)
        photograph(page, "dry-run")
        page.get_by_label("Token").fill(TOKEN)
        page.get_by_role("button", name="Replay orders_cache").click()
        replaying = f"Replaying versions {first} to {orders.version}"
        top = page.locator("header")
        expect(top).to_contain_text(re.compile(rf"{replaying} · [1-9]\d? %.* left"), timeout=3 * REFRESHED_MS)
        expect(page.get_by_role("progressbar")).to_be_visible()
        expect(page.locator(".commands tbody tr").first).to_contain_text("running")
        looked_at(browser, page.url, "replaying", showing=replaying)
        looked_at(browser, f"{of(healthy, 'orders_cache')}/actions/resync", "second-operator", "A replay is running")
        with opened(browser, healthy.url) as other:
            expect(below(other, "orders_cache")).to_contain_text(replaying)
        expect(top).not_to_contain_text("Replaying", timeout=12 * REFRESHED_MS)
        expect(page.locator(".commands tbody tr").first).to_contain_text("done", timeout=REFRESHED_MS)


def test_route_of_a_sink_that_is_down_comes_first(
    healthy: Service, browser: Browser, orders: Source, redis_server: Redis
):
    redis_server.stop()
    try:
        orders.change("UPDATE {} SET amount = 2 WHERE id < 5")
        healthy.wait_state("orders_cache", "retrying")
        with opened(browser, healthy.url) as page:
            expect(page.locator(".routes tbody tr").first).to_contain_text("orders_cache")
            expect(below(page, "orders_cache")).to_contain_text("Next step:")
            expect(page.locator(".sinks tr", has_text="redis").first).to_contain_text("Down", timeout=REFRESHED_MS)
            looked_at(browser, healthy.url, "sink-down", showing="Retrying")
    finally:
        redis_server.restart()
    healthy.wait_state("orders_cache", "running")


def test_halted_route_shows_the_next_step(healthy: Service, browser: Browser, items: Source):
    shutil.rmtree(items.path)
    Source.created(items.start, items.path)
    healthy.wait_state("items_audit", "halted")
    with opened(browser, healthy.url) as page:
        expect(page).to_have_title("Failed, 1 route halted · cdf-replicator")
        expect(page.locator(".routes tbody tr").first).to_contain_text("items_audit")
        expect(below(page, "items_audit")).to_contain_text("cdf-replicator resync items_audit")
    looked_at(browser, healthy.url, "halted", showing="Halted")
    looked_at(browser, of(healthy, "items_audit"), "halted-route", showing="Next step:")
    ended = command(healthy.given, "resync", "items_audit", "--yes")
    assert ended.code == 0, ended.log


def test_lost_service_is_reported(service: Service, browser: Browser):
    with Proxy(service.port) as proxy, browser.new_page() as page:  # its console may say so
        page.clock.install()
        page.goto(f"http://127.0.0.1:{proxy.port}")
        expect(page.locator("header")).to_contain_text(re.compile(r"Updated \d s ago"))
        proxy.mode = "refuse"
        page.clock.fast_forward(REFRESH_MS)
        expect(page.get_by_role("status")).to_have_text("No answer from the service.", timeout=REFRESHED_MS)
        page.clock.fast_forward(3 * REFRESH_MS)
        expect(page.locator("#age")).to_have_class(re.compile("late"), timeout=2 * REFRESHED_MS)
        photograph(page, "gone")
