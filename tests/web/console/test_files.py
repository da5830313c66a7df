"""The console's files: complete, of our own origin, without a way to turn text into markup.

What it looks like and how it behaves in a browser is the browser tier's.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import trivet_web
from trivet_web.console.files import KINDS, file_url, files_of_console

if TYPE_CHECKING:
    from flask.testing import FlaskClient

FOLDER = Path(trivet_web.__file__).parent / "console"
FILES = files_of_console()
MODULES = [name for name in FILES if name.endswith(".js")]
STYLES = [name for name in FILES if name.endswith(".css")]
ALLOWED = "button:disabled, input:disabled, select:disabled, textarea:disabled"
IMPORT = re.compile(r"import (?:\{([^}]+)\} from )?\"(\.[^\"]+)\"")


@pytest.mark.parametrize("name", FILES)
def test_file_has_a_type_and_is_kept_for_good(client: FlaskClient, name: str) -> None:
    with client.get(file_url(name)) as response:
        assert response.status_code == 200
        assert response.mimetype == KINDS[Path(name).suffix]
        assert "immutable" in response.headers["Cache-Control"]


def test_a_file_of_another_release_is_not_kept(client: FlaskClient) -> None:
    with client.get(f"/console/files/older/{FILES[0]}") as response:
        assert response.headers["Cache-Control"] == "no-store"


def test_a_file_is_no_longer_than_400_lines() -> None:
    assert not [name for name in FILES if len((FOLDER / name).read_text().splitlines()) > 400]


@pytest.mark.parametrize("name", MODULES)
def test_module_imports_what_exists(name: str) -> None:
    for names, file in IMPORT.findall((FOLDER / name).read_text()):
        source = (FOLDER / name).parent / file
        assert source.is_file(), file
        for imported in filter(None, (part.split(" as ")[0].strip() for part in names.split(","))):
            pattern = rf"export (?:async )?(?:class|const|function\*?) {imported}\b"
            assert re.search(pattern, source.read_text()), imported


@pytest.mark.parametrize("name", MODULES)
def test_module_makes_no_markup_of_text_and_fetches_nothing_from_elsewhere(name: str) -> None:
    text = (FOLDER / name).read_text()
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|setHTML|DOMParser",
        text,
    )
    assert "http://" not in text.replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in text


@pytest.mark.parametrize(
    "path", ["pages/../files.py", "..%2fapp.py", "%2e%2e/app.py", "files.py", "shell/shell.html"]
)
def test_only_files_for_browsers_are_served(client: FlaskClient, path: str) -> None:
    assert client.get(f"/console/files/x/{path}").status_code == 404


def colours(theme: int) -> dict[str, tuple[float, float, float]]:
    """Name → red, green, blue of the style sheet in the light (0) or the dark (1) theme."""
    pairs = re.findall(
        r"--([\w-]+): light-dark\((#\w{6}), (#\w{6})\)", (FOLDER / "shell/tokens.css").read_text()
    )
    return {name: rgb(values[theme]) for name, *values in pairs}


def rgb(text: str) -> tuple[float, float, float]:
    red, green, blue = (int(text[at : at + 2], 16) / 255 for at in (1, 3, 5))
    return red, green, blue


def mix(share: float, a: tuple[float, ...], b: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(share * x + (1 - share) * y for x, y in zip(a, b, strict=True))


def contrast(a: tuple[float, ...], b: tuple[float, ...]) -> float:
    """WCAG 2.2, "contrast ratio"."""

    def luminance(colour: tuple[float, ...]) -> float:
        parts = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour]
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]

    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_text_has_the_contrast_that_wcag_asks_for(theme: int) -> None:
    of = colours(theme)
    grounds = [of["panel"], of["ground"], of["sunken"]]
    pairs = [(name, ground) for name in ("ink", "muted", "bad", "accent") for ground in grounds]
    pairs += [(tone, mix(0.12, of[tone], of["panel"])) for tone in ("ok", "warn", "bad", "muted")]  # badges
    pairs += [
        ("warn", mix(0.12, of["warn"], of["panel"])),
        ("bad", mix(0.06, of["bad"], of["panel"])),
        ("accent", mix(0.12, of["accent"], of["panel"])),
        ("ink", mix(0.14, of["accent"], of["panel"])),
        ("on-accent", of["accent"]),
        ("on-accent", of["bad"]),
    ]
    for name, ground in pairs:
        assert contrast(of[name], ground) >= 4.5, (name, ground)
    for name in ("edge", *(f"series-{number}" for number in range(8))):
        assert contrast(of[name], of["panel"]) >= 3.0, name


@pytest.mark.parametrize("name", STYLES)
def test_no_text_is_dimmed_by_opacity(name: str) -> None:
    """Contrast is judged on the colours alone; only what is disabled may be fainter."""
    dimmed = re.findall(r"([^{}\n]+)\{[^{}]*\bopacity: 0", (FOLDER / name).read_text())
    assert {one.strip() for one in dimmed} <= {ALLOWED, "to"}
