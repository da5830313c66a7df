"""The pages of the console: where they are, who may open them, where the menu has them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from trivet_web.accounts.rights import Right

FOLDER = Path(__file__).parent / "pages"


@dataclass(frozen=True, slots=True)
class Page:
    """`name` is that of its folder in pages/, of its words and of its address."""

    name: str
    right: Right
    group: str = ""  # of the menu; empty: not in it
    key: str = ""  # pressed after `g`, goes there
    parent: str = ""  # the page of the list, for one that shows one thing: /console/PARENT/THING

    @property
    def path(self) -> str:
        """Of one that shows one thing, what stands before the thing's name."""
        return "/" if self.name == "overview" else f"/console/{self.parent or self.name}"


_ALL = (
    Page("overview", Right.READ, "use", "o"),
    Page("playground", Right.INFER, "use", "p"),
    Page("models", Right.READ, "serve", "m"),
    Page("model", Right.READ, parent="models"),
    Page("launch", Right.OPERATE, key="n"),
    Page("deployments", Right.READ, "serve", "d"),
    Page("deployment", Right.READ, parent="deployments"),
    Page("instances", Right.READ, "serve", "i"),
    Page("instance", Right.READ, parent="instances"),
    Page("requests", Right.READ, "observe", "r"),
    Page("metrics", Right.READ, "observe", "t"),
    Page("logs", Right.READ, "observe", "l"),
    Page("keys", Right.ACCOUNT, "administer", "k"),
    Page("users", Right.ADMINISTER, "administer", "u"),
    Page("audit", Right.ADMINISTER, "administer", "a"),
    Page("settings", Right.READ, "administer", "s"),
    Page("api", Right.NOTHING, "administer", "e"),
    Page("account", Right.ACCOUNT, key="c"),
)
PAGES: tuple[Page, ...] = tuple(page for page in _ALL if (FOLDER / page.name).is_dir())
MISSING = Page("missing", Right.NOTHING)  # in place of one that is not there
GROUPS = ("use", "serve", "observe", "administer")


def page_of(name: str, thing: str | None) -> Page | None:
    """The page at /console/NAME, or at /console/NAME/THING."""
    for page in PAGES:
        if page.parent == name if thing else page.name == name and not page.parent:
            return page
    return None
