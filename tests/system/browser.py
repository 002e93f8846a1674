"""Drive Debian's Chromium by Playwright: pages on screens and phones, by keyboard and by screen reader."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect, sync_playwright

from deploy.local.servers.server import CACHE

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGES: Final = ("chromium", "fonts-dejavu-core")
SCREENSHOTS: Final = CACHE / "screenshots"
WIDE: Final = {"width": 1440, "height": 900}
PHONE: Final = {"width": 390, "height": 844}
LOOKS: Final[dict[str, dict[str, Any]]] = {
    "light": {"color_scheme": "light"},
    "dark": {"color_scheme": "dark"},
    "phone": {"viewport": PHONE, "is_mobile": True, "has_touch": True},
}
FLAGS: Final = ("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking")


@contextmanager
def chromium() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=[*FLAGS])
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def opened(browser: Browser, url: str, **context: Any) -> Iterator[Page]:
    """A page that said nothing on its console, with a clock that a test may move on; ``context``: Playwright's options of one."""
    said: list[str] = []
    with browser.new_context(**{"viewport": WIDE, **context}) as made:
        page = made.new_page()
        page.clock.install()
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.goto(url)
        yield page
    assert said == [], said


def photograph(page: Page, name: str) -> None:
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SCREENSHOTS / f"{name}.png", full_page=True)


def open_details(page: Page) -> bool:
    """Open all details of the page; return True if there are any."""
    found = page.locator("details")
    found.evaluate_all("all => all.forEach(it => { it.open = true; })")
    return found.count() > 0


def barriers(page: Page) -> list[str]:
    """Return the findings of axe: https://dequeuniversity.com/rules/axe/html."""
    found = Axe().run(page).response["violations"]
    return [f"{rule['id']}: {node['html']}: {node['failureSummary']}" for rule in found for node in rule["nodes"]]


def looked_at(browser: Browser, url: str, name: str, showing: str = "") -> None:
    """Check that the page fits and has no barrier: light, dark, on a phone, details closed and open; take pictures.

    The page with open details has every element of the page with closed details, so that axe examines it alone.
    """
    for look, context in LOOKS.items():
        with opened(browser, url, **context) as page:
            expect(page.locator("main")).to_contain_text(showing)
            photograph(page, f"{name}-{look}")
            assert fits(page), f"{name} is wider than {look}"
            if open_details(page):
                photograph(page, f"{name}-{look}-open")
                assert fits(page), f"{name}, all open, is wider than {look}"
            assert barriers(page) == [], f"{name}, {look}"


def fits(page: Page) -> bool:
    return bool(page.evaluate("document.documentElement.scrollWidth <= innerWidth"))
