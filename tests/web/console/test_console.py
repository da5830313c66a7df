"""The console's files: complete, of our own origin, without a way to turn text into markup.

What it looks like and how it behaves in a browser is the browser tier's.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import trivet_web

if TYPE_CHECKING:
    from flask.testing import FlaskClient

STATIC = Path(trivet_web.__file__).parent / "static"
FILES = sorted(path.name for path in STATIC.iterdir() if path.is_file())
MODULES = [name for name in FILES if name.endswith(".js")]
BROWSER = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


def test_page_names_the_version_and_has_nothing_inline(client: FlaskClient) -> None:
    page = client.get("/", headers=BROWSER)
    text = page.get_data(as_text=True)
    assert page.status_code == 200
    assert page.mimetype == "text/html"
    assert ">0." in text
    assert not re.search(r"<style|\sstyle=|\son\w+=|<script(?![^>]*\bsrc=)", text)


def test_page_refers_to_files_that_exist(client: FlaskClient) -> None:
    text = client.get("/", headers=BROWSER).get_data(as_text=True)
    referred = re.findall(r'(?:src|href)="([^"#]+)"', text)
    assert referred
    for address in referred:
        assert address.startswith("/static/"), address
        with client.get(address) as response:
            assert response.status_code == 200, address


@pytest.mark.parametrize("name", FILES)
def test_static_file_has_a_type_and_is_revalidated(client: FlaskClient, name: str) -> None:
    kinds = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
    with client.get(f"/static/{name}") as response:
        assert response.mimetype == kinds[Path(name).suffix]
        assert "no-cache" in response.headers["Cache-Control"]
        assert response.headers["ETag"]


@pytest.mark.parametrize("name", MODULES)
def test_module_imports_what_exists(name: str) -> None:
    for names, file in re.findall(r'import \{([^}]+)\} from "\./([^"]+)"', (STATIC / name).read_text()):
        source = (STATIC / file).read_text()
        for imported in (part.strip() for part in names.split(",")):
            assert re.search(rf"export (?:async )?(?:class|const|function\*?) {imported}\b", source), imported


@pytest.mark.parametrize("name", MODULES)
def test_module_makes_no_markup_of_text_and_fetches_nothing_from_elsewhere(name: str) -> None:
    text = (STATIC / name).read_text()
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text
    )
    assert "http://" not in text
    assert "https://" not in text


def test_every_element_that_a_module_asks_for_is_on_the_page(client: FlaskClient) -> None:
    page = client.get("/", headers=BROWSER).get_data(as_text=True)
    ids = set(re.findall(r'\bid="([^"]+)"', page))
    for name in MODULES:
        for wanted in re.findall(r'byId\("([^"]+)"\)', (STATIC / name).read_text()):
            assert wanted in ids, (name, wanted)


def test_no_path_leads_out_of_the_static_folder(client: FlaskClient) -> None:
    for path in ("/static/../app.py", "/static/..%2fapp.py", "/static/%2e%2e/app.py"):
        assert client.get(path).status_code == 404, path


def colours(theme: int) -> dict[str, tuple[float, float, float]]:
    """Name → red, green, blue of the style sheet in the light (0) or the dark (1) theme."""
    pairs = re.findall(r"--([\w-]+): light-dark\((#\w{6}), (#\w{6})\)", (STATIC / "console.css").read_text())
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
    grounds = {name: of[name] for name in ("panel", "ground")}
    pairs = [(name, ground) for name in ("ink", "muted", "bad") for ground in grounds.values()]
    pairs += [(name, mix(0.14, of[name], of["panel"])) for name in ("ok", "warn", "bad", "muted")]  # pills
    pairs += [
        ("on-accent", of["accent"]),
        ("on-accent", of["bad"]),
        ("ink", mix(0.14, of["accent"], of["panel"])),
    ]
    for name, ground in pairs:
        assert contrast(of[name], ground) >= 4.5, (name, ground)
    border = re.search(
        r"border: 1px solid color-mix\(in srgb, var\(--ink\) (\d+)%", (STATIC / "console.css").read_text()
    )
    assert border is not None
    assert contrast(mix(int(border[1]) / 100, of["ink"], of["line"]), of["panel"]) >= 3.0


def test_no_text_is_dimmed_by_opacity() -> None:
    """Contrast is judged on the colours alone; only what is disabled may be fainter."""
    style = (STATIC / "console.css").read_text()
    dimmed = re.findall(r"([^{}\n]+)\{[^{}]*\bopacity: 0", style)
    assert [name.strip() for name in dimmed] == ["button:disabled", "to"]
