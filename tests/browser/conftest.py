"""Chromium, pages that report what a console must never do, and one site for all tests."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

sys.path.append(str(Path(__file__).parent))
from console_site import ADMIN, Site
from watched_page import OPTIONS, Watch, log_in

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

# Plain `pytest` has no Playwright: these tests are `tests/run browser`.
collect_ignore_glob = [] if "TRIVET_BROWSER_CACHE" in os.environ else ["test_*.py"]

CHROMIUM = "/usr/bin/chromium"
PATIENCE_MS = 30_000  # a busy machine is slow; what hangs is found all the same
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


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--screenshots", metavar="DIR", type=Path, help="photograph every page into DIR")


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def new_site() -> Iterator[Site]:
    """Nobody has set it up, and nothing runs."""
    with tempfile.TemporaryDirectory(prefix="tv") as home:  # short: socket paths hold 107 bytes
        made = Site(Path(home))
        yield made
        made.close()


@pytest.fixture(scope="session")
def site() -> Iterator[Site]:
    """For all files, with an admin, SmolLM2 on the CPU as `smol` and the null backend as `null`.

    What a test adds to it has a name of its own; what it takes away it has added.
    """
    with tempfile.TemporaryDirectory(prefix="tv") as home:
        made = Site(Path(home))
        try:
            made.register()
            made.launch({"smol": "cpu", "null": "null"}, max_num_seqs="8", max_model_len="2048")
            made.add_user(ADMIN, "admin")
            yield made
        finally:
            made.close()


@pytest.fixture(scope="session")
def signed_in(site: Site, browser: Browser) -> Iterator[BrowserContext]:
    """A browser in which the admin is logged in, shared: a login takes a second, a first page 60 files."""
    context = browser.new_context(**OPTIONS)
    context.set_default_timeout(PATIENCE_MS)
    page = context.new_page()
    log_in(page, site)
    page.close()
    yield context
    context.close()


@pytest.fixture
def watches() -> list[Watch]:
    return []


@pytest.fixture
def open_page(browser: Browser, watches: list[Watch]) -> Iterator[Callable[..., Page]]:
    """A page of a browser of its own; `options` are of Playwright's new_context."""
    contexts: list[BrowserContext] = []

    def open_one(origin: str, **options: object) -> Page:
        context = browser.new_context(**{**OPTIONS, **options})
        context.set_default_timeout(PATIENCE_MS)
        contexts.append(context)
        page = context.new_page()
        watches.append(Watch(page, origin))
        return page

    yield open_one
    for context in contexts:
        context.close()
    for watch in watches:
        watch.check()


@pytest.fixture
def admin_page(site: Site, signed_in: BrowserContext, watches: list[Watch]) -> Iterator[Page]:
    """Logged in as the admin and nowhere yet; what it leaves in the browser is gone after the test."""
    cookies = signed_in.cookies()
    page = signed_in.new_page()
    watch = Watch(page, site.url)
    watches.append(watch)
    yield page
    if page.url.startswith(site.url):
        page.evaluate("localStorage.clear()")
    page.close()
    signed_in.clear_cookies()
    signed_in.add_cookies(cookies)  # type: ignore[arg-type]  # as they were given
    watch.check()


@pytest.fixture
def photograph(request: pytest.FixtureRequest) -> Callable[[Page, str], None]:
    """Of a page in both themes, into the folder of --screenshots; without it nothing."""
    folder: Path | None = request.config.getoption("--screenshots")

    def take(page: Page, name: str) -> None:
        if folder is None:
            return
        folder.mkdir(parents=True, exist_ok=True)
        for theme in ("light", "dark"):
            page.emulate_media(color_scheme=theme)
            page.screenshot(path=folder / f"{name}-{theme}.png", full_page=True)

    return take
