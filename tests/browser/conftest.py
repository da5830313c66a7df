"""Chromium, pages that report what a console must never do, and a site for all tests of a file."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

sys.path.append(str(Path(__file__).parent))
from console_site import ADMIN, PASSWORD, Site

CHROMIUM = "/usr/bin/chromium"
FLAGS = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
# A page that was left while something was on its way complains of that; nothing else may be said.
HARMLESS = ("net::ERR_ABORTED",)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--screenshots", metavar="DIR", type=Path, help="photograph every page into DIR")


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def empty_site() -> Iterator[Site]:
    """Nobody has set it up, and nothing runs."""
    with tempfile.TemporaryDirectory(prefix="tv") as home:  # short: socket paths hold 107 bytes
        made = Site(Path(home))
        yield made
        made.close()


@pytest.fixture(scope="module")
def site(empty_site: Site) -> Site:
    """With an admin, SmolLM2 on the CPU as `smol` and the null backend as `null`."""
    empty_site.register()
    empty_site.launch("smol", "cpu", max_num_seqs="8", max_model_len="2048")
    empty_site.launch("null", "null")
    empty_site.add_user(ADMIN, "admin")
    return empty_site


class Watch:
    """What a page must not do: ask elsewhere, break the policy, complain, fail."""

    def __init__(self, page: Page, origin: str) -> None:
        self.problems: list[str] = []
        self.expected: list[str] = []  # parts of complaints that a test provokes
        page.on(
            "request", lambda one: self._add(f"asks elsewhere: {one.url}", not one.url.startswith(origin))
        )
        page.on("pageerror", lambda error: self._add(f"error: {error}"))
        page.on("console", lambda one: self._add(f"console: {one.text}", one.type in ("error", "warning")))

    def _add(self, problem: str, is_one: bool = True) -> None:
        if is_one and not any(part in problem for part in HARMLESS):
            self.problems.append(problem)

    def check(self) -> None:
        rest = [one for one in self.problems if not any(part in one for part in self.expected)]
        assert not rest, rest


OpenPage = Callable[..., Page]


@pytest.fixture
def watches() -> list[Watch]:
    return []


@pytest.fixture
def open_page(browser: Browser, watches: list[Watch]) -> Iterator[Callable[..., Page]]:
    """A page of a browser of its own; `options` are of Playwright's new_context."""
    contexts: list[BrowserContext] = []

    def open_one(origin: str, **options: object) -> Page:
        given = {"viewport": {"width": 1280, "height": 860}, "locale": "en-US", **options}
        context = browser.new_context(**given)
        context.set_default_timeout(20_000)
        contexts.append(context)
        page = context.new_page()
        watches.append(Watch(page, origin))
        return page

    yield open_one
    for context in contexts:
        context.close()
    for watch in watches:
        watch.check()


def log_in(page: Page, site: Site, name: str = ADMIN) -> None:
    page.goto(f"{site.url}/login")
    page.fill("input[name=name]", name)
    page.fill("input[name=password]", PASSWORD)
    page.click("button[type=submit]")
    page.wait_for_url(lambda url: "/login" not in url)


@pytest.fixture
def admin_page(site: Site, open_page: Callable[..., Page]) -> Page:
    """Logged in as the admin, on the overview."""
    page = open_page(site.url)
    log_in(page, site)
    return page
