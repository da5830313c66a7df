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


def test_page_names_the_version_and_has_nothing_inline(client: FlaskClient) -> None:
    page = client.get("/")
    text = page.get_data(as_text=True)
    assert page.status_code == 200
    assert page.mimetype == "text/html"
    assert ">0." in text
    assert not re.search(r"<style|\sstyle=|\son\w+=|<script(?![^>]*\bsrc=)", text)


def test_page_refers_to_files_that_exist(client: FlaskClient) -> None:
    text = client.get("/").get_data(as_text=True)
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
    page = client.get("/").get_data(as_text=True)
    ids = set(re.findall(r'\bid="([^"]+)"', page))
    for name in MODULES:
        for wanted in re.findall(r'byId\("([^"]+)"\)', (STATIC / name).read_text()):
            assert wanted in ids, (name, wanted)


def test_no_path_leads_out_of_the_static_folder(client: FlaskClient) -> None:
    for path in ("/static/../app.py", "/static/..%2fapp.py", "/static/%2e%2e/app.py"):
        assert client.get(path).status_code == 404, path
