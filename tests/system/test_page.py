"""The status page in a real browser, of a real service that things happen to; pictures of it are kept in .cache/screenshots."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import httpx
import pytest
from playwright.sync_api import expect

from tests.service import Service, environment
from tests.system.browser import PACKAGES, PHONE, barriers, chromium, opened, photograph

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from playwright.sync_api import Browser, Page

    from deploy.servers import Redis
    from tests.e2e.conftest import Source

TOKEN = "0123456789abcdef0123456789abcdef"
ROUTES = ("orders_audit", "orders_cache", "items_audit")
ROWS = 1000
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
        service.wait_delivered(route, source.version)
    return service


def looked_at(browser: Browser, url: str, name: str) -> None:
    """In every look a picture, nothing beside the screen, and no barrier."""
    for look, context in LOOKS.items():
        with opened(browser, url, **context) as page:
            photograph(page, f"{name}-{look}")
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"{name} is wider than {look}"
        assert barriers(browser, url, **context) == [], f"{name}, {look}"


def card(page: Page, route: str):
    return page.get_by_role("article", name=route)


def test_a_healthy_service_in_every_look(healthy: Service, browser: Browser):
    looked_at(browser, healthy.url, "healthy")
    looked_at(browser, f"{healthy.url}/api", "api")
    with opened(browser, healthy.url) as page:
        expect(page).to_have_title("Healthy · cdf-replicator")
        for route in ROUTES:
            expect(card(page, route)).to_contain_text("Running")


def test_all_of_it_can_be_reached_by_keyboard_and_stays_open(healthy: Service, browser: Browser):
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
        before = page.locator("header time").inner_text()
        expect(page.locator("header time")).not_to_have_text(before, timeout=REFRESHED_MS)
        expect(batches).to_be_visible()
        expect(summary).to_be_focused()


def test_it_needs_no_script(healthy: Service, browser: Browser):
    with opened(browser, healthy.url, java_script_enabled=False) as page:
        photograph(page, "no-script")
        before = page.locator("header time").inner_text()
        expect(page.locator("header time")).not_to_have_text(before, timeout=REFRESHED_MS)
        expect(card(page, "orders_cache")).to_contain_text("Running")


def test_a_replay_shows_how_far_it_is(healthy: Service, browser: Browser, orders: Source):
    orders.sql("UPDATE {} SET amount = amount + 1")
    healthy.wait_delivered("orders_cache", orders.version)
    asked = httpx.post(
        f"{healthy.url}/routes/orders_cache/replay",
        json={"starting_version": 1},
        headers={"Authorization": f"Bearer {TOKEN}"},
        trust_env=False,
    )
    assert asked.status_code == httpx.codes.ACCEPTED
    with opened(browser, healthy.url) as page:
        expect(card(page, "orders_cache")).to_contain_text("Replaying versions 1 to", timeout=REFRESHED_MS)
        expect(card(page, "orders_cache").get_by_role("progressbar")).to_be_visible()
        looked_at(browser, healthy.url, "replaying")
        expect(card(page, "orders_cache")).not_to_contain_text("Replaying", timeout=6 * REFRESHED_MS)


def test_a_sink_that_is_down_comes_first(healthy: Service, browser: Browser, orders: Source, redis_server: Redis):
    redis_server.stop()
    try:
        orders.sql("UPDATE {} SET amount = 2 WHERE id < 5")
        healthy.wait_state("orders_cache", "retrying")
        with opened(browser, healthy.url) as page:
            expect(page.locator("article").first).to_contain_text("orders_cache")
            expect(card(page, "orders_cache")).to_contain_text("Next step:")
            expect(page.get_by_role("row", name="cache redis")).to_contain_text("Down", timeout=REFRESHED_MS)
            looked_at(browser, healthy.url, "sink-down")
    finally:
        redis_server.restart()
    healthy.wait_state("orders_cache", "running")


def test_a_halted_route_says_what_to_do(healthy: Service, browser: Browser, items: Source):
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
        looked_at(browser, healthy.url, "halted")


def test_a_service_that_is_gone_is_told(healthy: Service, browser: Browser):
    with browser.new_page() as page:  # its console may say so
        page.goto(healthy.url)
        healthy.kill()
        expect(page.get_by_role("status")).to_have_text("No answer from the service.", timeout=REFRESHED_MS)
        photograph(page, "gone")
