"""Talking to models: stopping, comparing, looking at tokens, and answers that mean harm."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from console_site import Site, wait_for
from playwright.sync_api import Locator, Page, Route, expect
from watched_page import Watch, log_in

LONG_MS = 60_000
STORY = "Write a very long story about a lighthouse, in many chapters."
HOSTILE = (
    'Hi <img src=x onerror="document.title=\'owned\'"> [click](javascript:document.title="owned") '
    "![pixel](https://evil.example/pixel.png) \u202edesrever \u001b[31mred\u001b[0m "
    "<script>document.title='owned'</script>"
)


@pytest.fixture
def page(admin_page: Page, site: Site) -> Page:
    open_playground(admin_page, site)
    return admin_page


def open_playground(page: Page, site: Site) -> None:
    """At temperature 0 an answer is as long each time, where dice may end it after a token."""
    page.goto(f"{site.url}/console/playground?model=smol")
    expect(page.get_by_label("Model", exact=True).first).to_have_value("smol")
    page.get_by_label("Temperature").fill("0")


def ask(page: Page, text: str) -> None:
    page.get_by_label("Message", exact=True).fill(text)
    page.keyboard.press("Enter")


def answers(page: Page) -> Locator:
    return page.get_by_role("article", name="Model")


def expect_numbers(page: Page) -> None:
    """The last answer has ended: its numbers stand below it (no speed where its tokens came at once)."""
    expect(answers(page).last).to_contain_text("TTFT", timeout=LONG_MS)


def num_running(site: Site, name: str) -> int:
    with site.client() as client:
        return sum(one.load.num_running for one in client.instances.list(name) if one.load is not None)


def test_escape_stops_the_engine_too(page: Page, site: Site) -> None:
    ask(page, STORY)
    expect(answers(page).last.locator("p").last).not_to_be_empty(timeout=LONG_MS)
    wait_for("the engine works", lambda: num_running(site, "smol") == 1)
    page.keyboard.press("Escape")
    expect(answers(page).last).to_contain_text("stopped")
    expect(answers(page).last).to_contain_text("tok/s")
    wait_for("the engine rests", lambda: num_running(site, "smol") == 0)
    expect(page.get_by_role("button", name="Send")).to_be_visible()


def test_an_answer_is_seen_token_by_token(page: Page) -> None:
    page.get_by_label("Token probabilities").check()
    page.get_by_label("Max tokens").fill("12")
    ask(page, "Name three colours.")
    expect_numbers(page)
    page.get_by_role("button", name="Tokens", exact=True).click()
    tokens = page.get_by_role("group", name="Tokens").get_by_role("button")
    expect(tokens).to_have_count(12)
    tokens.nth(1).hover()
    expect(page.locator(".token-table tr")).to_have_count(5)
    expect(page.locator(".token-table")).to_contain_text("%")


def test_a_conversation_is_edited_and_asked_again(page: Page) -> None:
    page.get_by_label("Max tokens").fill("8")
    ask(page, "Say hello.")
    expect_numbers(page)
    page.get_by_role("button", name="Answer again").last.click()
    expect(page.get_by_role("button", name="Send")).to_be_visible(timeout=LONG_MS)
    expect(answers(page)).to_have_count(1)
    expect(answers(page)).to_contain_text("2 / 2")
    page.get_by_role("button", name="Earlier version").click()
    expect(answers(page)).to_contain_text("1 / 2")
    mine = page.get_by_role("article", name="You")
    mine.hover()
    mine.get_by_role("button", name="Edit").click()
    mine.get_by_label("Edit").fill("Say goodbye.")
    page.get_by_role("button", name="Send again").click()
    expect_numbers(page)
    expect(mine).to_contain_text("Say goodbye.")
    page.reload()
    expect(mine).to_contain_text("Say goodbye.")


def test_a_browser_without_room_for_a_conversation_shows_it_all_the_same(page: Page) -> None:
    page.evaluate(
        """() => {
            for (let size = 1 << 22, n = 0; size; n++) {
                try { localStorage.setItem("filler" + n, "x".repeat(size)); } catch { size >>= 1; }
            }
        }"""
    )
    page.get_by_label("Max tokens").fill("4")
    for number in (1, 2):
        ask(page, f"Say hello {number}.")
        expect(answers(page)).to_have_count(number)
        expect_numbers(page)
        expect(page.get_by_role("button", name="Send")).to_be_visible(timeout=LONG_MS)


def test_a_conversation_ends_with_its_login(site: Site, open_page: Callable[..., Page]) -> None:
    page = open_page(site.url)
    log_in(page, site)
    open_playground(page, site)
    page.get_by_label("Max tokens").fill("4")
    ask(page, "A secret.")
    expect_numbers(page)
    page.get_by_role("button", name="Your account").click()
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Log in")
    assert "A secret." not in page.evaluate("JSON.stringify(localStorage)")


def test_two_models_answer_side_by_side(page: Page) -> None:
    page.get_by_role("button", name="Compare").click()
    expect(page.get_by_label("Model", exact=True).nth(1)).to_have_value("null")
    page.get_by_label("Max tokens").fill("8")
    ask(page, "Hello")
    expect(answers(page)).to_have_count(2)
    for index in range(2):  # one of all its tokens at once has no rate
        expect(answers(page).nth(index)).to_contain_text("TTFT", timeout=LONG_MS)


def test_the_code_is_what_was_sent(page: Page) -> None:
    page.get_by_label("Temperature").fill("0.3")
    page.get_by_label("Message", exact=True).fill("it's me")
    page.get_by_role("button", name="View code").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("it'\\''s me")
    expect(dialog).to_contain_text("temperature=0.3")
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()


def test_a_refused_request_says_why_in_its_place(page: Page, watches: list[Watch]) -> None:
    watches[0].expected.append("400")
    page.get_by_label("Max tokens").fill("100000")
    ask(page, "Hello")
    expect(page.get_by_role("alert")).to_contain_text("max_tokens")
    expect(page.get_by_role("button", name="Try again")).to_be_visible()


def test_hostile_output_runs_nothing(page: Page) -> None:
    """The answer is put in the place of the model's; `watches` fails it if anything is asked elsewhere."""

    def answer(route: Route) -> None:
        chunk = {"choices": [{"index": 0, "delta": {"content": HOSTILE}, "finish_reason": "stop"}]}
        body = f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n"
        route.fulfill(status=200, content_type="text/event-stream", body=body)

    page.route("**/v1/chat/completions", answer)
    title = page.title()
    ask(page, HOSTILE)
    expect(answers(page).last).to_contain_text('<img src=x onerror="document.title=')
    expect(answers(page).last).to_contain_text("⟨U+202E⟩desrever")
    expect(page.locator(".talk-log a, .talk-log img, .talk-log script")).to_have_count(0)
    page.reload()
    expect(answers(page).last).to_contain_text("<script>")
    assert page.title() == title


def test_an_engine_killed_while_it_answers_is_told_and_comes_back(
    page: Page, site: Site, watches: list[Watch]
) -> None:
    watches[0].expected.append("503")
    ask(page, STORY)
    expect(answers(page).last.locator("p").last).not_to_be_empty(timeout=LONG_MS)
    wait_for("the engine works", lambda: num_running(site, "smol") == 1)
    killed = site.kill_engine("smol")
    expect(page.get_by_role("alert")).to_be_visible()
    expect(page.get_by_role("button", name="Send")).to_be_visible()
    wait_for("another serves", lambda: site.ready_pid("smol") not in (None, killed))
    page.get_by_label("Max tokens").fill("8")
    page.get_by_role("button", name="Try again").click()
    expect_numbers(page)
