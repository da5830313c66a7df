"""Every page: no violation of WCAG 2.2 AA that axe finds, in both themes; narrow; and pictures for people."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from console_site import PASSWORD, Site
from playwright.sync_api import BrowserContext, Page, expect
from watched_page import OPTIONS, Watch

from trivet.demo_model import find_demo_model
from trivet_web.console.navigation import PAGES

AXE = Path(os.environ.get("TRIVET_BROWSER_CACHE", "build/browser")) / "node_modules/axe-core/axe.min.js"
RULES = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]}
LONG = "long-name-" + 118 * "x"  # 128
SETTLED_MS = 400  # what is asked for has come
PHOTO_MS = 1500  # figures come each second


def address(site: Site, name: str) -> str:
    (page,) = [one for one in PAGES if one.name == name]
    if not page.parent:
        return site.url + page.path
    with site.client() as client:
        (instance,) = client.instances.list("smol")
    thing = {"model": "smollm2", "deployment": "smol", "instance": instance.id}[name]
    return f"{site.url}{page.path}/{thing}"


@pytest.mark.parametrize(
    ("theme", "language", "width"),
    [
        ("light", "en", 1360),
        ("light", "zh-CN", 1360),
        ("dark", "en", 1360),
        ("dark", "zh-CN", 1360),
        ("dark", "en", 360),
    ],
)
def test_photographs(
    request: pytest.FixtureRequest,
    site: Site,
    signed_in: BrowserContext,
    open_page: Callable[..., Page],
    theme: str,
    language: str,
    width: int,
) -> None:
    folder: Path | None = request.config.getoption("--screenshots")
    if folder is None:
        pytest.skip("no --screenshots DIR is given")
    folder.mkdir(parents=True, exist_ok=True)
    page = open_page(
        site.url,
        color_scheme=theme,
        locale=language,
        storage_state=signed_in.storage_state(),
        viewport={"width": width, "height": 860},
    )
    with site.client() as client:
        for number in range(3):
            client.chat.complete("smol", [{"role": "user", "content": f"Count to {number}."}], max_tokens=16)
    for one in PAGES:
        page.goto(address(site, one.name))
        if one.name == "playground":
            page.locator("#message").fill(
                "Name three rivers of Europe, as a list, and say a word about each."
            )
            page.keyboard.press("Enter")
        page.wait_for_timeout(PHOTO_MS)
        page.screenshot(path=folder / f"{one.name}-{theme}-{language}-{width}.png", full_page=True)
    stranger = open_page(
        site.url, color_scheme=theme, locale=language, viewport={"width": width, "height": 860}
    )
    stranger.goto(f"{site.url}/login")
    stranger.screenshot(path=folder / f"login-{theme}-{language}-{width}.png", full_page=True)


@pytest.fixture(scope="module")
def long_names(site: Site) -> Iterator[None]:
    """A model, a deployment and a user with names as long as they may be."""
    with site.client() as client:
        client.models.add(str(find_demo_model()), name=LONG)
        client.deployments.create(LONG, name=LONG, backend="null", replicas=1)
        client.users.create(LONG[:64], PASSWORD, "viewer")
        yield
        client.deployments.stop(LONG)


@pytest.fixture(scope="module", params=["login", *(page.name for page in PAGES)])
def shown(
    request: pytest.FixtureRequest, site: Site, signed_in: BrowserContext, long_names: None
) -> Iterator[Page]:
    """A page with its data, opened once for the tests of this file."""
    name = request.param
    context = signed_in.browser.new_context(**OPTIONS) if name == "login" else signed_in  # type: ignore[union-attr]
    page = context.new_page()
    watch = Watch(page, site.url)
    page.goto(f"{site.url}/login" if name == "login" else address(site, name))
    expect(page.get_by_role("main")).to_be_visible()
    expect(page.locator(".skeleton:visible")).to_have_count(0)
    page.wait_for_timeout(SETTLED_MS)
    yield page
    page.close()
    if context is not signed_in:
        context.close()
    watch.check()


@pytest.mark.skipif(not AXE.exists(), reason="axe-core comes with node, which is not here")
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing(shown: Page, theme: str) -> None:
    shown.emulate_media(color_scheme=theme)  # type: ignore[arg-type]  # one of its words
    assert not violations(shown)


def test_a_narrow_page_does_not_scroll_sideways(shown: Page) -> None:
    shown.set_viewport_size({"width": 360, "height": 740})
    assert shown.evaluate("document.documentElement.scrollWidth") <= 360
    shown.set_viewport_size(OPTIONS["viewport"])


@pytest.mark.skipif(not AXE.exists(), reason="axe-core comes with node, which is not here")
@pytest.mark.parametrize(
    ("name", "opening"),
    [
        ("keys", lambda page: page.get_by_role("button", name="Create key").first.click()),
        ("models", lambda page: page.get_by_role("button", name="Add model").click()),
        ("users", lambda page: page.get_by_role("button", name="Password").first.click()),
        ("deployments", lambda page: page.get_by_role("checkbox", name="Select all").check()),
        ("metrics", lambda page: page.get_by_role("button", name="As table: Running").click()),
        ("audit", lambda page: page.keyboard.press("Control+k")),
        ("api", lambda page: page.locator("summary").first.click()),
    ],
)
def test_axe_finds_nothing_in_what_opens(
    site: Site, admin_page: Page, name: str, opening: Callable[[Page], None]
) -> None:
    admin_page.goto(address(site, name))
    expect(admin_page.locator(".skeleton:visible")).to_have_count(0)
    opening(admin_page)
    assert not violations(admin_page)


def violations(page: Page) -> list[tuple[str, str, list[str]]]:
    """Of WCAG 2.2 AA: rule, what it says, and up to three places."""
    page.evaluate(AXE.read_text())  # not by a script of the page: its policy forbids those of others
    found = page.evaluate("rules => axe.run(document, rules)", RULES)["violations"]
    return [(one["id"], one["help"], [node["html"][:200] for node in one["nodes"]][:3]) for one in found]
