"""What is around every page: roles, language, theme, keyboard, the live stream and its loss."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from console_site import Site
from playwright.sync_api import Page, expect
from watched_page import Watch, log_in

from trivet_web.console.navigation import PAGES

SETTLED_MS = 700  # what is asked for has come


@pytest.fixture(scope="module")
def roles(site: Site) -> Site:
    site.add_user("watcher", "viewer")
    site.add_user("writer", "user")
    return site


def test_a_viewer_sees_and_changes_nothing(
    roles: Site, open_page: Callable[..., Page], watches: list[Watch]
) -> None:
    page = open_page(roles.url)
    log_in(page, roles, "watcher")
    expect(page.get_by_role("table", name="Instances")).to_contain_text("smol")
    expect(page.get_by_role("link", name="Launch model")).to_have_count(0)
    expect(page.get_by_role("navigation")).not_to_contain_text("Playground")
    watches[0].expected.append("403")
    page.goto(f"{roles.url}/console/playground")
    expect(page.get_by_role("main")).to_contain_text("use models")


def test_a_user_gets_to_the_playground_at_once(roles: Site, open_page: Callable[..., Page]) -> None:
    page = open_page(roles.url)
    log_in(page, roles, "writer")
    expect(page).to_have_url(re.compile("/console/playground"))
    expect(page.get_by_label("Model", exact=True)).to_have_value("null")
    expect(page.get_by_role("navigation")).not_to_contain_text("Overview")


def test_language_and_theme_are_chosen_and_stay(admin_page: Page) -> None:
    page = admin_page
    page.get_by_role("button", name="Your account").click()
    page.get_by_role("link", name="简体中文").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("概览")
    expect(page.locator("html")).to_have_attribute("lang", "zh-CN")
    assert "language" not in page.url
    page.get_by_role("button", name="账户").click()
    page.locator("#theme").select_option("dark")
    page.reload()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(12, 16, 21)"


def test_a_chinese_browser_is_spoken_to_in_chinese(site: Site, open_page: Callable[..., Page]) -> None:
    page = open_page(site.url, locale="zh-CN")
    page.goto(f"{site.url}/login")
    expect(page.get_by_role("button", name="登录")).to_be_visible()


def test_the_keyboard_leads_everywhere(admin_page: Page, site: Site) -> None:
    page = admin_page
    expect(page.get_by_text("Live", exact=True)).to_be_visible()
    page.keyboard.press("g")
    page.keyboard.press("p")
    expect(page).to_have_url(re.compile("/console/playground"))
    page.get_by_label("Message", exact=True).fill("g o ? are letters here")
    page.keyboard.press("Control+k")
    page.keyboard.type("smol")
    results = page.get_by_role("listbox", name="Find a page").get_by_role("option")
    expect(results.first).to_contain_text("smol")
    page.keyboard.press("Escape")
    page.locator("h1").click()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_contain_text("Go to the filter")


def test_a_lost_stream_is_told_and_taken_up_again(admin_page: Page, watches: list[Watch], site: Site) -> None:
    page = admin_page
    expect(page.get_by_text("Live", exact=True)).to_be_visible()
    watches[0].expected.append("net::ERR")
    asked: list[str] = []
    page.on("request", lambda one: asked.append(one.url) if "/console/events" in one.url else None)
    page.route("**/console/events*", lambda route: route.abort())
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")  # it connects anew
    expect(page.get_by_text("Reconnecting")).to_be_visible()
    expect(page.get_by_text("Not up to date").first).to_be_visible()
    page.unroute("**/console/events*")
    expect(page.get_by_text("Live", exact=True)).to_be_visible()
    expect(page.get_by_text("Not up to date").first).to_be_hidden()
    assert "after=" in asked[-1]


def test_a_narrow_page_does_not_scroll_sideways(site: Site, open_page: Callable[..., Page]) -> None:
    page = open_page(site.url, viewport={"width": 360, "height": 740})
    log_in(page, site)
    for path in (one.path for one in PAGES if not one.parent):
        page.goto(site.url + path)
        expect(page.get_by_role("main")).to_be_visible()
        page.wait_for_timeout(SETTLED_MS)
        assert page.evaluate("document.documentElement.scrollWidth") <= 360, path
