"""What is around every page: roles, language, theme, keyboard, the live stream and its loss."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from console_site import PASSWORD, Site
from playwright.sync_api import Page, expect
from watched_page import Watch, log_in


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
    expect(page.get_by_label("Model", exact=True)).not_to_have_value("")
    expect(page.get_by_role("navigation")).not_to_contain_text("Overview")


def test_language_and_theme_are_chosen_and_stay(admin_page: Page, site: Site) -> None:
    page = admin_page
    page.goto(site.url)
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
    page.goto(site.url)
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
    page.goto(site.url)
    expect(page.get_by_role("table", name="Instances")).to_contain_text("smol")
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


@pytest.mark.parametrize("path", ["/", "/console/instances"])
def test_nothing_is_said_to_be_empty_before_the_server_has_said_so(
    admin_page: Page, watches: list[Watch], site: Site, path: str
) -> None:
    page = admin_page
    watches[0].expected.append("net::ERR")
    page.route("**/console/events*", lambda route: route.abort())
    page.goto(f"{site.url}{path}")
    expect(page.get_by_text("Reconnecting")).to_be_visible()
    page.wait_for_timeout(6000)  # the overview counts times anew every 5 s
    expect(page.get_by_role("status").filter(has_text="Loading").first).to_be_visible()
    expect(page.get_by_text("Nothing runs")).to_have_count(0)
    expect(page.get_by_text("No instance is ready")).to_have_count(0)


def test_a_login_that_ends_leads_to_the_next_and_back(
    site: Site, open_page: Callable[..., Page], watches: list[Watch]
) -> None:
    site.add_user("guest", "viewer")
    page = open_page(site.url)
    log_in(page, site, "guest")
    watches[0].expected.append("401")
    page.goto(f"{site.url}/console/deployments?filter=smol&sort=-name")
    expect(page.get_by_text("Live", exact=True)).to_be_visible()
    with site.client() as client:
        client.users.update("guest", {"role": "operator"})  # which ends their logins
    expect(page.get_by_role("heading", level=1)).to_have_text("Log in")
    page.get_by_label("Name").fill("guest")
    page.get_by_label("Password", exact=True).fill(PASSWORD)
    page.get_by_role("button", name="Log in").click()
    expect(page).to_have_url(f"{site.url}/console/deployments?filter=smol&sort=-name")
    expect(page.get_by_label("Filter")).to_have_value("smol")


def test_a_chinese_reader_hears_the_servers_reasons_in_chinese(
    site: Site, open_page: Callable[..., Page], watches: list[Watch]
) -> None:
    page = open_page(site.url, locale="zh-CN")
    log_in(page, site)
    expect(page.get_by_role("table", name="实例")).to_contain_text("已生成词元")
    watches[0].expected.append("404")
    page.goto(f"{site.url}/console/launch?model=nothing-like-it")
    fit = page.locator("#fit")
    expect(fit.get_by_role("alert")).to_contain_text("模型 'nothing-like-it' 未注册")
