"""Launching, watching and stopping models, and reading what they write."""

from __future__ import annotations

import re

from console_site import Site
from playwright.sync_api import Page, expect
from watched_page import Watch

LONG_MS = 60_000


def test_a_launch_that_does_not_fit_says_so_before_and_offers_what_does(site: Site, admin_page: Page) -> None:
    page = admin_page
    page.goto(f"{site.url}/console/launch?model=smollm2")
    fit = page.get_by_role("region", name="What it takes")
    expect(fit).to_contain_text("Fits", timeout=LONG_MS)
    expect(fit).to_contain_text("Room for")
    page.get_by_label("Share of memory").fill("0.001")
    expect(fit).to_contain_text("Does not fit", timeout=LONG_MS)
    expect(fit).to_contain_text("gpu_memory_utilization")
    fit.get_by_role("button", name="Apply").first.click()
    expect(fit.get_by_text("Fits", exact=True).first).to_be_visible(timeout=LONG_MS)

    page.get_by_label("Deployment name").fill("second")
    page.get_by_label("Context").fill("512")
    expect(page.get_by_role("region", name="As a command")).to_contain_text("--name second")
    page.get_by_role("button", name="Launch").click()
    expect(page).to_have_url(f"{site.url}/console/deployments/second")
    expect(page.get_by_role("table", name="Instances")).to_contain_text("Ready", timeout=LONG_MS)
    page.get_by_role("button", name="Stop").click()
    page.get_by_role("dialog").get_by_role("button", name="Stop").click()
    expect(page.get_by_role("main")).to_contain_text("stopped", timeout=LONG_MS)


def test_a_launch_with_a_wrong_setting_is_told_in_the_servers_words(
    site: Site, admin_page: Page, watches: list[Watch]
) -> None:
    watches[0].expected.append("400")
    page = admin_page
    page.goto(f"{site.url}/console/launch?model=smollm2")
    page.get_by_text("More settings").click()
    page.get_by_label("Engine settings").fill("max_num_seq=4")
    expect(page.get_by_role("region", name="What it takes")).to_contain_text("max_num_seqs", timeout=LONG_MS)


def test_adapters_of_a_launch_are_lines_whose_folders_the_server_looks_at(
    site: Site, admin_page: Page, watches: list[Watch]
) -> None:
    watches[0].expected.append("400")
    page = admin_page
    page.goto(f"{site.url}/console/launch?model=smollm2")
    page.get_by_text("More settings").click()
    page.get_by_label("Adapters (LoRA)").fill("sql=/nowhere/sql\ntone=/nowhere/tone")
    fit = page.get_by_role("region", name="What it takes")
    expect(fit).to_contain_text("/nowhere/sql is no adapter", timeout=LONG_MS)
    expect(page.get_by_text("adapters=sql=/nowhere/sql,tone=/nowhere/tone")).to_be_visible()


def test_an_instance_shows_its_batch_plan_and_events(site: Site, admin_page: Page) -> None:
    page = admin_page
    page.goto(f"{site.url}/console/instances")
    page.get_by_role("row", name=re.compile("smol")).get_by_role("link").first.click()
    expect(page.get_by_role("main")).to_contain_text("of 8 slots")
    page.get_by_role("tab", name="Configuration").click()
    expect(page.get_by_role("row", name=re.compile("weights"))).to_contain_text("MiB")
    page.get_by_role("tab", name="Events").click()
    expect(page.get_by_role("list").filter(has_text="generated a token")).to_be_visible()
    page.get_by_role("tab", name="Logs").click()
    expect(page.get_by_role("log")).to_be_visible()
    page.reload()
    expect(page.get_by_role("tab", name="Logs")).to_have_attribute("aria-selected", "true")


def test_requests_tell_where_their_time_went(site: Site, admin_page: Page) -> None:
    with site.client() as client:
        client.chat.complete("smol", [{"role": "user", "content": "Say hello."}], max_tokens=4)
    admin_page.goto(f"{site.url}/console/requests")
    row = admin_page.get_by_role("row", name=re.compile("smol")).first
    expect(row).to_contain_text("Done")
    expect(row.get_by_role("img")).to_have_attribute("aria-label", re.compile("prefill .+s"))


def test_a_model_shows_its_template_and_its_tokens(site: Site, admin_page: Page) -> None:
    page = admin_page
    page.goto(f"{site.url}/console/models")
    page.get_by_role("link", name="smollm2").click()
    page.get_by_role("tab", name="Template and tokenizer").click()
    expect(page.get_by_role("main")).to_contain_text("<|im_start|>user", timeout=LONG_MS)
    page.locator("textarea[name=text]").fill("one two three")
    expect(page.locator(".token-piece")).to_have_count(3)


def test_metrics_are_drawn_and_can_be_read_as_a_table(site: Site, admin_page: Page) -> None:
    page = admin_page
    page.goto(f"{site.url}/console/metrics")
    chart = page.get_by_role("img", name=re.compile("^Running:"))
    expect(chart).to_be_visible()
    page.get_by_role("button", name="As table: Running").click()
    expect(page.get_by_role("region", name="Running")).to_contain_text("Time")
