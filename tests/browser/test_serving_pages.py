"""Deployments that fail, change and end, and the names and files of models, as an operator uses them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from console_site import Site, wait_for
from playwright.sync_api import expect

from trivet.demo_model import find_demo_model

if TYPE_CHECKING:
    from playwright.sync_api import Page
    from watched_page import Watch

FIRST_CHANGE_IS_LATE = """
const own = fetch;
let isFirst = true;
globalThis.fetch = async (url, given) => {
  if (given?.method === "PATCH" && isFirst) {
    isFirst = false;
    await new Promise((resolve) => setTimeout(resolve, 1000));
  }
  return own(url, given);
};
"""  # what overtakes it would be undone by it
TOO_SMALL = {"gpu_memory_utilization": "0.001"}


@pytest.fixture
def too_big(site: Site) -> str:
    """A deployment that fits on no device."""
    with site.client() as client:
        client.deployments.create(str(find_demo_model()), name="too-big", backend="cpu", settings=TOO_SMALL)
    return "too-big"


def test_a_deployment_that_fits_nowhere_says_why_and_how_to_mend_it(
    site: Site, admin_page: Page, too_big: str
) -> None:
    page = admin_page
    page.goto(f"{site.url}/console/deployments/{too_big}")
    failure = page.locator("#failure")
    expect(failure.locator(".failure-cause")).to_contain_text("GiB")
    expect(page.locator("#command")).to_contain_text("--set gpu_memory_utilization=0.001")
    failure.get_by_role("button", name="Apply").first.click()
    expect(page.get_by_text(re.compile("starts anew with gpu_memory_utilization="))).to_be_visible()
    with site.client() as client:
        assert client.deployments.get(too_big).settings != TOO_SMALL
        client.deployments.stop(too_big)


def test_a_deployment_is_updated_and_stopped(site: Site, admin_page: Page) -> None:
    page = admin_page
    site.launch({"short-lived": "null"})
    page.goto(f"{site.url}/console/deployments")
    row = page.get_by_role("row", name="short-lived")
    row.get_by_role("link", name="Update").click()
    asked = page.get_by_role("dialog", name="Update short-lived")
    asked.get_by_label("Priority").fill("3")
    asked.get_by_label("Fallback").select_option("null")
    asked.get_by_role("button", name="Update").click()
    expect(page.locator("#facts").get_by_role("link", name="null", exact=True)).to_be_visible()
    with site.client() as client:
        changed = client.deployments.get("short-lived")
    assert (changed.priority, changed.fallback, changed.generation) == (3, "null", 1)
    page.get_by_role("button", name="Stop").click()
    page.get_by_role("dialog").get_by_role("button", name="Stop").click()
    expect(page.get_by_role("link", name="Launch again")).to_have_attribute(
        "href", "/console/launch?from=short-lived"
    )


def test_who_updates_what_somebody_else_has_updated_meanwhile_is_told(
    site: Site, admin_page: Page, watches: list[Watch]
) -> None:
    watches[0].expected.append("409")
    site.launch({"of-two": "null"})
    admin_page.goto(f"{site.url}/console/deployments/of-two")
    admin_page.get_by_role("button", name="Update").click()
    asked = admin_page.get_by_role("dialog", name="Update of-two")
    asked.get_by_label("Priority").fill("3")
    with site.client() as client:
        client.deployments.update("of-two", {"priority": 5})
    asked.get_by_role("button", name="Update").click()
    expect(asked.get_by_role("alert")).to_contain_text("priority 0 to 5")
    admin_page.keyboard.press("Escape")
    expect(admin_page.locator("#facts dt", has_text="Priority").locator("+ dd")).to_have_text("5")
    admin_page.get_by_role("button", name="Update").click()
    expect(asked.get_by_label("Priority")).to_have_value("5")
    asked.get_by_label("Priority").fill("4")
    asked.get_by_role("button", name="Update").click()
    expect(asked).to_have_count(0)
    with site.client() as client:
        assert client.deployments.get("of-two").priority == 4
        client.deployments.stop("of-two")


def test_a_model_shows_its_files_versions_and_where_a_name_has_pointed(site: Site, admin_page: Page) -> None:
    page = admin_page
    page.goto(f"{site.url}/console/models/smollm2")
    page.get_by_role("button", name="New alias").click()
    asked = page.get_by_role("dialog")
    asked.get_by_label("Alias").fill("prod")
    asked.get_by_role("button", name="Save").click()
    page.get_by_role("button", name="History").click()
    expect(page.get_by_role("dialog", name="Where smollm2:prod has pointed")).to_contain_text("1")
    page.keyboard.press("Escape")
    expect(page.get_by_role("table", name="Versions")).to_contain_text("prod")
    page.get_by_role("tab", name="Files").click()
    expect(page.get_by_role("tabpanel", name="Files")).to_contain_text(".gguf")


def test_several_deployments_are_stopped_at_once(site: Site, admin_page: Page) -> None:
    with site.client() as client:
        for name in ("bulk-one", "bulk-two"):
            client.deployments.create(str(find_demo_model()), name=name, backend="null", replicas=1)
    page = admin_page
    page.goto(f"{site.url}/console/deployments?filter=bulk")
    expect(page.get_by_role("row", name="bulk")).to_have_count(2)
    page.get_by_role("checkbox", name="Select bulk-one").check()
    acts = page.get_by_role("group", name="What to do with the selected ones")
    expect(acts).to_contain_text("1 selected")
    page.get_by_role("checkbox", name="Select all").click()
    acts.get_by_role("button", name="Stop").click()
    asked = page.get_by_role("dialog", name="Stop 2 deployments?")
    asked.get_by_role("button", name="Stop").click()
    expect(page.get_by_role("link", name="Launch again")).to_have_count(2)
    expect(acts).to_be_hidden()
    with site.client() as client:
        assert {client.deployments.get(name).desired for name in ("bulk-one", "bulk-two")} == {"stopped"}


def test_replicas_are_counted_on_with_each_click_and_the_button_keeps_its_focus(
    site: Site, admin_page: Page
) -> None:
    with site.client() as client:
        client.deployments.create(str(find_demo_model()), name="scaled", backend="null", replicas=0)
    admin_page.add_init_script(FIRST_CHANGE_IS_LATE)
    admin_page.goto(f"{site.url}/console/deployments?filter=scaled")
    more = admin_page.get_by_role("button", name="One more replica of scaled")
    more.dblclick()
    more.focus()
    admin_page.keyboard.press("Enter")
    admin_page.wait_for_timeout(1500)
    wait_for("all three count", lambda: replicas(site, "scaled") == 3)
    expect(admin_page.get_by_role("row", name="scaled")).to_contain_text("3")
    expect(more).to_be_focused()
    assert replicas(site, "scaled") == 3
    with site.client() as client:
        client.deployments.stop("scaled")


def replicas(site: Site, name: str) -> int:
    with site.client() as client:
        return client.deployments.get(name).replicas
