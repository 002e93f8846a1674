"""The status page in a real browser, of a real service that things happen to; pictures of it are kept in .cache/screenshots."""

from __future__ import annotations

import re
import shutil
from typing import TYPE_CHECKING

import httpx
import pytest
from playwright.sync_api import expect

from tests.support.service import Service, command, environment
from tests.system.browser import PACKAGES, PHONE, barriers, chromium, open_details, opened, photograph

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from playwright.sync_api import Browser, Page

    from deploy.local.servers import Redis
    from tests.support.source import Source

TOKEN = "0123456789abcdef0123456789abcdef"
ROUTES = ("orders_audit", "orders_cache", "items_audit")
ROWS = 1000
REPLAYED = 6
"""Commits, each a micro-batch, and each as slow as the sink's limit has it."""
REFRESHED_MS = 15_000
LOOKS = {
    "light": {"color_scheme": "light"},
    "dark": {"color_scheme": "dark"},
    "phone": {"viewport": PHONE, "is_mobile": True, "has_touch": True},
}


@pytest.fixture(scope="module")
def browser(installed: Callable[..., None]) -> Iterator[Browser]:
    installed(*PACKAGES)
    with chromium() as browser:
        yield browser


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
        source.sql(change)
    for route, source in zip(ROUTES, (orders, orders, items), strict=True):
        service.wait_state(route, "running")
        service.wait_delivered(route, source.version)
    return service


def looked_at(browser: Browser, url: str, name: str, showing: str = "") -> None:
    """Check that the page fits and has no barrier: light, dark, on a phone, details closed and open; take pictures."""
    for look, context in LOOKS.items():
        with opened(browser, url, **context) as page:
            expect(page.locator("main")).to_contain_text(showing)
            photograph(page, f"{name}-{look}")
            assert fits(page), f"{name} is wider than {look}"
            if open_details(page):
                photograph(page, f"{name}-{look}-open")
                assert fits(page), f"{name}, all open, is wider than {look}"
        assert barriers(browser, url, **context) == [], f"{name}, {look}"


def fits(page: Page) -> bool:
    return page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def refreshed(page: Page) -> None:
    """Wait until the page shows a later moment than now."""
    shown = page.locator("header time")
    expect(shown).not_to_have_attribute("datetime", str(shown.get_attribute("datetime")), timeout=REFRESHED_MS)


def card(page: Page, route: str):
    return page.get_by_role("article", name=route)


def test_page_of_a_healthy_service_in_every_theme(healthy: Service, browser: Browser):
    looked_at(browser, healthy.url, "healthy")
    with opened(browser, healthy.url) as page:
        expect(page).to_have_title("Healthy · cdf-replicator")
        for route in ROUTES:
            expect(card(page, route)).to_contain_text("Running")


def test_page_works_by_keyboard_and_details_stay_open(healthy: Service, browser: Browser):
    with opened(browser, healthy.url) as page:
        summary = card(page, "items_audit").locator("summary")
        for _ in range(20):
            page.keyboard.press("Tab")
            if summary.evaluate("it => it === document.activeElement"):
                break
        expect(summary).to_be_focused()
        page.keyboard.press("Enter")
        batches = card(page, "items_audit").get_by_role("table")
        expect(batches).to_be_visible()
        refreshed(page)
        expect(batches).to_be_visible()
        expect(summary).to_be_focused()


def test_selection_and_scroll_position_stay(healthy: Service, browser: Browser):
    with opened(browser, healthy.url, viewport={"width": 700, "height": 900}) as page:
        shown = card(page, "items_audit")
        shown.locator("summary").click()
        batches = page.get_by_role("region", name="Batches of items_audit")
        batches.evaluate("it => it.scrollTo(40, 0)")
        refreshed(page)
        assert batches.evaluate("it => it.scrollLeft") == 40
        resync = "cdf-replicator resync items_audit"
        shown.get_by_text(resync, exact=True).click()
        expect(page.get_by_role("status")).to_have_text("Waits while text is selected.", timeout=REFRESHED_MS)
        assert page.evaluate("getSelection().toString()") == resync
        page.evaluate("getSelection().empty()")
        refreshed(page)


def test_page_needs_no_script(healthy: Service, browser: Browser):
    with opened(browser, healthy.url, java_script_enabled=False) as page:
        photograph(page, "no-script")
        refreshed(page)
        expect(card(page, "orders_cache")).to_contain_text("Running")


def test_replay_shows_its_progress(healthy: Service, browser: Browser, orders: Source):
    first = orders.version
    for _ in range(REPLAYED):
        orders.sql(f"UPDATE {{}} SET amount = amount + 1 WHERE id < {ROWS * 6 // 10}")
    reply = httpx.post(
        f"{healthy.url}/routes/orders_cache/replay",
        json={"starting_version": first},
        headers={"Authorization": f"Bearer {TOKEN}"},
        trust_env=False,
    )
    assert reply.status_code == httpx.codes.ACCEPTED
    replaying = f"Replaying versions {first} to {orders.version}"
    with opened(browser, healthy.url) as page:
        shown = card(page, "orders_cache")
        expect(shown).to_contain_text(re.compile(rf"{replaying} · [1-9]\d? %"), timeout=3 * REFRESHED_MS)
        expect(shown.get_by_role("progressbar")).to_be_visible()
        looked_at(browser, healthy.url, "replaying", showing=replaying)
        expect(shown).not_to_contain_text("Replaying", timeout=6 * REFRESHED_MS)


def test_a_sink_that_is_down_comes_first(healthy: Service, browser: Browser, orders: Source, redis_server: Redis):
    redis_server.stop()
    try:
        orders.sql("UPDATE {} SET amount = 2 WHERE id < 5")
        healthy.wait_state("orders_cache", "retrying")
        with opened(browser, healthy.url) as page:
            expect(page.locator("article").first).to_contain_text("orders_cache")
            expect(card(page, "orders_cache")).to_contain_text("Next step:")
            expect(page.get_by_role("row", name="cache redis")).to_contain_text("Down", timeout=REFRESHED_MS)
            looked_at(browser, healthy.url, "sink-down", showing="Retrying")
    finally:
        redis_server.restart()
    healthy.wait_state("orders_cache", "running")


def test_halted_route_shows_the_next_step(healthy: Service, browser: Browser, items: Source):
    shutil.rmtree(items.path)
    items.spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()  # type: ignore[union-attr] # Spark Connect has none
    for _ in range(2):
        items.sql(
            "CREATE OR REPLACE TABLE {} USING delta TBLPROPERTIES (delta.enableChangeDataFeed = true) AS SELECT 1L AS id"
        )
    healthy.wait_state("items_audit", "halted")
    with opened(browser, healthy.url) as page:
        expect(page.locator("article").first).to_contain_text("items_audit")
        expect(card(page, "items_audit")).to_contain_text("cdf-replicator resync items_audit")
        looked_at(browser, healthy.url, "halted", showing="Halted")
    ended = command(healthy.given, "resync", "items_audit", "--yes")
    assert ended.code == 0, ended.log


def test_lost_service_is_reported(service: Service, browser: Browser):
    with browser.new_page() as page:  # its console may say so
        page.goto(service.url)
        expect(page.locator("header")).to_contain_text(re.compile(r"Updated \d s ago"))
        service.kill()
        try:
            expect(page.get_by_role("status")).to_have_text("No answer from the service.", timeout=REFRESHED_MS)
            expect(page.locator("#age")).to_have_class(re.compile("late"), timeout=2 * REFRESHED_MS)
            photograph(page, "gone")
        finally:
            service.started()
