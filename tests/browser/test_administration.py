"""Keys, users, the audit log and one's own account, as an admin uses them."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from console_site import PASSWORD, Site
from playwright.sync_api import Page, expect
from watched_page import Watch, log_in

from trivet.client import Client
from trivet.errors import AuthenticationError

NUM_ROWS = 10_000
QUESTION = [{"role": "user", "content": "Which metal is heaviest?"}]


def test_a_key_is_shown_once_works_and_is_revoked(site: Site, admin_page: Page) -> None:
    admin_page.goto(f"{site.url}/console/keys")
    admin_page.get_by_role("button", name="Create key").first.click()
    asked = admin_page.get_by_role("dialog")
    asked.get_by_label("Name").fill("nightly")
    asked.get_by_role("textbox", name="Models").fill("null")
    asked.get_by_role("button", name="Create key").click()
    made = admin_page.get_by_role("dialog", name="Key nightly")
    key = made.locator(".code-block pre").first.inner_text()
    with Client(site.url, key) as client:
        assert client.chat.complete("null", QUESTION, max_tokens=2).choices
    expect(made.get_by_role("note")).to_have_count(0)
    made.get_by_role("button", name="Close").last.click()

    row = admin_page.get_by_role("row", name="nightly")
    expect(row).to_contain_text("Valid")
    assert key not in admin_page.content()
    row.get_by_role("button", name="Revoke").click()
    admin_page.get_by_role("dialog").get_by_role("button", name="Revoke").click()
    expect(row).to_have_count(0)
    admin_page.get_by_label("Also revoked and expired ones").check()
    expect(row).to_contain_text("Revoked")
    with Client(site.url, key) as client, pytest.raises(AuthenticationError):
        client.chat.complete("null", QUESTION)


def test_a_wrong_value_is_told_in_the_servers_words(
    site: Site, admin_page: Page, watches: list[Watch]
) -> None:
    watches[0].expected.append("404")
    admin_page.goto(f"{site.url}/console/keys")
    admin_page.get_by_role("button", name="Create key").first.click()
    asked = admin_page.get_by_role("dialog")
    asked.get_by_label("Name").fill("of nobody")
    asked.get_by_label("Owner").fill("nobody-here")
    asked.get_by_role("textbox", name="Models").fill("nul")
    asked.get_by_role("button", name="Create key").click()
    expect(asked.get_by_role("alert").filter(has_text="nobody-here")).to_be_visible()
    asked.get_by_label("Owner").fill("")
    asked.get_by_role("button", name="Create key").click()
    made = admin_page.get_by_role("dialog", name="Key of nobody")
    expect(made.get_by_role("note")).to_contain_text("no deployment is named 'nul' yet")


def test_a_user_is_added_logs_in_and_is_disabled(
    site: Site, admin_page: Page, open_page: Callable[..., Page]
) -> None:
    admin_page.goto(f"{site.url}/console/users")
    admin_page.get_by_role("button", name="Add user").click()
    asked = admin_page.get_by_role("dialog")
    asked.get_by_label("Name").fill("wei")
    asked.get_by_role("button", name="Draw one").click()
    assert len(asked.get_by_label("Password").input_value()) == 20
    asked.get_by_label("Password").fill(PASSWORD)
    asked.get_by_role("button", name="Add user").click()
    row = admin_page.get_by_role("row", name="wei")
    expect(row).to_contain_text("User")

    page = open_page(site.url)
    log_in(page, site, "wei")
    page.goto(f"{site.url}/console/account")
    expect(page.get_by_role("table", name="Logins")).to_contain_text("this one")
    expect(page.get_by_role("link", name="Users")).to_have_count(0)

    row.get_by_role("button", name="Disable").click()
    admin_page.get_by_role("dialog").get_by_role("button", name="Disable").click()
    expect(row).to_contain_text("Disabled")
    page.goto(f"{site.url}/console/account")
    expect(page.get_by_role("heading", level=1)).to_have_text("Log in")


def test_the_audit_log_names_the_act_and_is_whole(site: Site, admin_page: Page) -> None:
    with site.client() as client:
        client.users.create("short-lived", PASSWORD, "viewer")
        client.users.update("short-lived", {"role": "user"})
        client.users.remove("short-lived")
    admin_page.goto(f"{site.url}/console/audit?filter=short-lived%20user.change")
    row = admin_page.get_by_role("table", name="Audit log").get_by_role("row").nth(1)
    expect(row).to_contain_text("user.change")
    row.get_by_role("button", name="Details").click()
    expect(admin_page.get_by_role("dialog").get_by_role("row", name="role")).to_contain_text("viewer")
    admin_page.get_by_role("dialog").get_by_role("button", name="Close").last.click()
    admin_page.get_by_role("button", name="Verify").click()
    expect(admin_page.get_by_role("status").filter(has_text="entries are what was written")).to_be_visible()


def test_ones_own_password_is_changed(site: Site, open_page: Callable[..., Page]) -> None:
    site.add_user("mei", "user")
    page = open_page(site.url)
    log_in(page, site, "mei")
    page.goto(f"{site.url}/console/account")
    page.get_by_label("Current password").fill(PASSWORD)
    page.get_by_label("New password").fill("another long password")
    page.get_by_role("button", name="Change password").click()
    expect(page.get_by_text("The password was changed.")).to_be_visible()
    other = open_page(site.url)
    other.goto(f"{site.url}/login")
    other.get_by_label("Name").fill("mei")
    other.get_by_label("Password", exact=True).fill("another long password")
    other.get_by_role("button", name="Log in").click()
    expect(other).to_have_url(re.compile("/console/playground"))  # of users who may not see what is deployed


def test_ten_thousand_odd_keys_are_few_rows_and_all_are_found(site: Site, admin_page: Page) -> None:
    odd = ["<b>bold</b>", "x" * 128, "名字很长" * 30, "\u202egnp.exe", "=1+1", "👩‍👩‍👧‍👦"]
    common = {"user": "admin", "prefix": "sk-ab12", "scopes": ["infer"], "models": None, "priority": 0}
    limits = {"max_concurrency": None, "requests_per_minute": None, "expires_at": None}
    times = {"created_at": "2026-01-01T00:00:00Z", "last_used_at": None, "revoked_at": None}
    names = [*odd, *(f"key {number}" for number in range(NUM_ROWS - len(odd)))]
    keys = [{"id": number, "name": name, **common, **limits, **times} for number, name in enumerate(names)]
    admin_page.route("**/platform/v1/keys*", lambda route: route.fulfill(json={"data": keys}))
    admin_page.set_viewport_size({"width": 360, "height": 740})
    admin_page.goto(f"{site.url}/console/keys")
    rows = admin_page.get_by_role("table", name="API keys").locator("tbody tr")
    expect(rows).to_have_count(200)
    expect(rows.nth(0)).to_contain_text("<b>bold</b>")
    assert admin_page.evaluate("document.documentElement.scrollWidth") <= 360
    admin_page.get_by_role("button", name="Show more (9,800 left)").click()
    expect(rows).to_have_count(1000)
    admin_page.get_by_label("Filter").fill(f"key {NUM_ROWS - len(odd) - 1}")
    expect(rows).to_have_count(1)


def test_what_another_operator_does_is_seen_when_the_tab_is_looked_at(site: Site, admin_page: Page) -> None:
    admin_page.goto(f"{site.url}/console/users")
    expect(admin_page.get_by_role("row", name="admin")).to_be_visible()
    site.add_user("made-elsewhere", "viewer")
    admin_page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    expect(admin_page.get_by_role("row", name="made-elsewhere")).to_be_visible()
