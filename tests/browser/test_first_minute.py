"""From the setup link to a streamed answer of a real model, as somebody new to it does it."""

from __future__ import annotations

import re
from collections.abc import Callable

from console_site import ADMIN, PASSWORD, Site
from playwright.sync_api import Page, expect
from watched_page import Watch, log_in

LONG_MS = 60_000  # a model is loaded meanwhile
STREAMS = re.compile(r"/console/events|/platform/v1/site-logs/")  # what a page goes on asking for


def test_a_new_site_is_set_up_and_answers(
    new_site: Site, open_page: Callable[..., Page], photograph: Callable[[Page, str], None]
) -> None:
    site, page = new_site, open_page(new_site.url)
    page.goto(site.url)
    expect(page.get_by_role("heading", level=1)).to_have_text("Nobody has set up this site yet")

    for language in ("zh-CN", "en"):
        page.goto(f"{site.setup_link}&language={language}")
        photograph(page, f"setup-{language}")
    page.get_by_label("Name", exact=True).fill(ADMIN)
    page.get_by_label("Password", exact=True).fill(PASSWORD)
    page.get_by_label("Password again").fill(PASSWORD)
    page.get_by_role("button", name="Create admin").click()

    steps = page.get_by_role("region", name="First steps")
    expect(steps.get_by_role("button", name="Register smollm2")).to_be_visible()
    photograph(page, "first-steps-en")
    steps.get_by_role("button", name="Register smollm2").click()
    expect(steps).to_contain_text("Fits", timeout=LONG_MS)
    steps.get_by_role("button", name="Launch smollm2").click()
    expect(page.get_by_role("table", name="Instances")).to_contain_text("Ready", timeout=LONG_MS)

    steps.get_by_role("link", name="Open playground").click()
    expect(page.get_by_role("main")).to_contain_text("tokens of context")  # the models are there
    page.get_by_label("Temperature").fill("0")  # at 1 it says something else one time in six
    page.get_by_label("Message", exact=True).fill("What is the capital of France? Answer in one sentence.")
    page.keyboard.press("Enter")
    answer = page.get_by_role("article", name="Model")
    expect(answer).to_contain_text("Paris", timeout=LONG_MS)
    expect(answer).to_contain_text(re.compile(r"TTFT.*tokens"))


def test_setup_and_login_work_without_javascript(
    new_site: Site, open_page: Callable[..., Page], watches: list[Watch]
) -> None:
    new_site.ensure_admin()
    page = open_page(new_site.url, java_script_enabled=False)
    watches[0].expected.append("401")
    page.goto(f"{new_site.url}/console/playground")
    expect(page.get_by_role("heading", level=1)).to_have_text("Log in")
    page.get_by_label("Name").fill(ADMIN)
    page.get_by_label("Password", exact=True).fill("a wrong one, surely")
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("alert")).to_have_text("Name or password is wrong.")
    page.get_by_label("Password", exact=True).fill(PASSWORD)
    page.get_by_role("button", name="Log in").click()
    expect(page).to_have_url(f"{new_site.url}/console/playground")
    expect(page.get_by_role("navigation")).to_contain_text("Playground")


def test_a_web_server_that_dies_is_told_and_taken_up_again(
    new_site: Site, open_page: Callable[..., Page], watches: list[Watch]
) -> None:
    """What a page shows stays, as old; the parent starts another server."""
    new_site.ensure_admin()
    page, logs = open_page(new_site.url), open_page(new_site.url)
    for watch in watches:
        watch.expected.append("net::ERR")
    log_in(page, new_site)
    log_in(logs, new_site)
    page.goto(f"{new_site.url}/console/users")
    expect(page.get_by_text("Live", exact=True)).to_be_visible()
    logs.goto(f"{new_site.url}/console/logs?source=site:supervisor")
    log = logs.get_by_role("log")
    expect(log).to_contain_text("supervisor")
    for one in (page, logs):  # however soon the next server is there, it is told that there was none
        one.route(STREAMS, lambda route: route.abort())
    new_site.kill_web_server()
    expect(page.get_by_text("Reconnecting")).to_be_visible()
    expect(page.get_by_role("row", name=ADMIN)).to_be_visible()
    expect(logs.get_by_text("Not up to date")).to_be_visible()
    expect(log).to_contain_text("supervisor")
    for one in (page, logs):
        one.unroute(STREAMS)
    expect(page.get_by_text("Live", exact=True)).to_be_visible(timeout=LONG_MS)
    expect(logs.get_by_text("Not up to date")).to_be_hidden(timeout=LONG_MS)
    expect(log).to_contain_text("supervisor")
