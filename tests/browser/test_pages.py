"""Every page, in both themes: no violation of WCAG 2.2 AA that axe finds, and pictures for people."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from console_site import Site
from playwright.sync_api import Page, expect
from watched_page import log_in

from trivet_web.console.navigation import PAGES

AXE = Path(os.environ.get("TRIVET_BROWSER_CACHE", "build/browser")) / "node_modules/axe-core/axe.min.js"
RULES = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]}
SETTLED_MS = 1500  # figures come each second


def address(site: Site, name: str) -> str:
    (page,) = [one for one in PAGES if one.name == name]
    if not page.parent:
        return site.url + page.path
    with site.client() as client:
        (instance,) = client.instances.list("smol")
    thing = {"model": "smollm2", "deployment": "smol", "instance": instance.id}[name]
    return f"{site.url}{page.path}/{thing}"


@pytest.fixture(scope="module")
def states(site: Site, browser: object) -> dict[str, object]:
    """A login for all tests of this file: more would be throttled."""
    context = browser.new_context()  # type: ignore[attr-defined]
    page = context.new_page()
    log_in(page, site)
    state = context.storage_state()
    context.close()
    return state  # type: ignore[no-any-return]


@pytest.mark.skipif(not AXE.exists(), reason="axe-core comes with node, which is not here")
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("name", ["login", *(page.name for page in PAGES)])
def test_axe_finds_nothing(
    site: Site, states: object, open_page: Callable[..., Page], name: str, theme: str
) -> None:
    state = None if name == "login" else states
    page = open_page(site.url, color_scheme=theme, storage_state=state, bypass_csp=True)
    page.goto(f"{site.url}/login" if name == "login" else address(site, name))
    expect(page.get_by_role("main")).to_be_visible()
    page.wait_for_timeout(SETTLED_MS)
    page.add_script_tag(path=str(AXE))
    found = page.evaluate("rules => axe.run(document, rules)", RULES)["violations"]
    told = [(one["id"], one["help"], [node["html"][:200] for node in one["nodes"]][:3]) for one in found]
    assert not told


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
    states: object,
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
        storage_state=states,
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
        page.wait_for_timeout(SETTLED_MS)
        page.screenshot(path=folder / f"{one.name}-{theme}-{language}-{width}.png", full_page=True)
