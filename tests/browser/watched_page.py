"""A page that reports what a console must never do, and how one logs in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from console_site import ADMIN, PASSWORD, Site

if TYPE_CHECKING:
    from playwright.sync_api import Page

OPTIONS: dict[str, Any] = {"viewport": {"width": 1280, "height": 860}, "locale": "en-US"}  # of new_context
# A page that was left while something was on its way complains of that; nothing else may be said.
HARMLESS = ("net::ERR_ABORTED",)


class Watch:
    """What a page must not do: ask elsewhere, break the policy, complain, fail."""

    def __init__(self, page: Page, origin: str) -> None:
        self.problems: list[str] = []
        self.expected: list[str] = []  # parts of complaints that a test provokes
        page.on(
            "request", lambda one: self._add(f"asks elsewhere: {one.url}", not one.url.startswith(origin))
        )
        page.on("pageerror", lambda error: self._add(f"error: {error}"))
        page.on("console", lambda one: self._add(f"console: {one.text}", one.type in ("error", "warning")))

    def _add(self, problem: str, is_one: bool = True) -> None:
        if is_one and not any(part in problem for part in HARMLESS):
            self.problems.append(problem)

    def check(self) -> None:
        rest = [one for one in self.problems if not any(part in one for part in self.expected)]
        assert not rest, rest


def log_in(page: Page, site: Site, name: str = ADMIN) -> None:
    page.goto(f"{site.url}/login")
    page.fill("input[name=name]", name)
    page.fill("input[name=password]", PASSWORD)
    page.click("button[type=submit]")
    page.wait_for_url(lambda url: "/login" not in url)
