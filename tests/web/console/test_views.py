"""Pages as the server makes them: who may open which, in which language, without anything inline."""

from __future__ import annotations

import re
from html import unescape
from typing import TYPE_CHECKING

import pytest

from trivet_registry.users_store import create_user
from trivet_web.accounts.passwords import hash_password
from trivet_web.accounts.rights import RIGHTS_OF_ROLE, Right
from trivet_web.console.files import imports_of
from trivet_web.console.navigation import PAGES, Page

if TYPE_CHECKING:
    from conftest import Site
    from flask.testing import FlaskClient

BROWSER = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
PASSWORD = "a long password of words"


def log_in(site: Site, client: FlaskClient, role: str) -> None:
    with site.database.session() as session:
        create_user(session, f"some-{role}", role, hash_password(PASSWORD))
    client.application.extensions["trivet.accounts"].credentials.forget_all()
    answer = client.post("/login", data={"name": f"some-{role}", "password": PASSWORD})
    assert answer.status_code == 303, answer.text


def address(page: Page) -> str:
    return f"{page.path}/some-thing" if page.parent else page.path


@pytest.mark.parametrize("role", list(RIGHTS_OF_ROLE))
def test_a_role_opens_its_pages_and_no_other(site: Site, site_client: FlaskClient, role: str) -> None:
    log_in(site, site_client, role)
    for page in PAGES:
        answer = site_client.get(address(page), headers=BROWSER)
        may = page.right in RIGHTS_OF_ROLE[role]  # type: ignore[index]  # a StrEnum
        if page.name == "overview" and not may:
            assert answer.status_code == 303
            continue
        assert answer.status_code == (200 if may else 403), page.name
        linked = f'href="{page.path}"' in answer.text
        assert linked == (may and bool(page.group)) or page.parent or page.name == "account", page.name


def test_a_page_has_nothing_inline_and_names_files_that_exist(site: Site, site_client: FlaskClient) -> None:
    log_in(site, site_client, "admin")
    for page in PAGES:
        text = site_client.get(address(page), headers=BROWSER).text
        assert not re.search(r"<style|\sstyle=|\son\w+=|<script(?![^>]*\bsrc=)", text), page.name
        for found in set(re.findall(r'(?:src|href)="(/console/files/[^"#]+)', text)):
            with site_client.get(found) as response:
                assert response.status_code == 200, found


def test_a_stranger_is_led_to_the_login_and_back(site: Site, site_client: FlaskClient) -> None:
    log_in(site, site_client, "admin")
    site_client.delete_cookie("trivet_session")
    answer = site_client.get("/console/playground", headers=BROWSER)
    assert answer.headers["Location"] == "/login?next=/console/playground"
    wanted = "/console/launch?model=smollm2%3Aprod&filter=a+b"
    page = site_client.get(wanted, headers=BROWSER, follow_redirects=True).text
    (back,) = re.findall(r'name="next" value="([^"]*)"', page)
    form = {"name": "some-admin", "password": PASSWORD, "next": unescape(back)}
    assert site_client.post("/login", data=form).headers["Location"] == wanted


@pytest.mark.parametrize(
    "wanted",
    [
        "https://evil.example/",
        "//evil.example",
        "/console/../x",
        "/logout",
        "/\\x",
        "/console/keys?a#b",
    ],
)
def test_a_login_leads_to_no_place_that_an_address_chose(
    site: Site, site_client: FlaskClient, wanted: str
) -> None:
    log_in(site, site_client, "admin")
    form = {"name": "some-admin", "password": PASSWORD, "next": wanted}
    assert site_client.post("/login", data=form).headers["Location"] == "/"


def test_a_new_site_leads_to_its_setup(site_client: FlaskClient) -> None:
    for path in ("/", "/console/playground"):
        assert site_client.get(path, headers=BROWSER).headers["Location"] == "/setup"


def test_who_asks_for_no_page_gets_a_sign_of_life(site_client: FlaskClient) -> None:
    assert site_client.get("/").text == "Ollama is running"


def test_a_page_that_is_not_there_is_a_404(site_client: FlaskClient) -> None:
    for path in ("/console/nothing", "/console/model", "/console/overview/x"):
        assert site_client.get(path).status_code == 404, path


def test_a_reader_is_told_so_in_a_page(site: Site, site_client: FlaskClient) -> None:
    log_in(site, site_client, "viewer")
    answer = site_client.get("/console/nothing", headers=BROWSER)
    assert answer.status_code == 404
    assert "There is no such page" in answer.text


def test_a_page_asks_at_once_for_all_modules_that_it_needs() -> None:
    assert {"base/dom.js", "base/charts/frame.js", "pages/overview/tiles.js"} <= set(
        imports_of("pages/overview/page.js")
    )


@pytest.mark.parametrize(
    ("accept", "language"),
    [("zh-TW,zh;q=0.9,en;q=0.5", "zh-CN"), ("de,en;q=0.5,zh;q=0.4", "en"), ("de", "en"), ("", "en")],
)
def test_the_language_is_the_browsers(site_client: FlaskClient, accept: str, language: str) -> None:
    page = site_client.get("/setup", headers={**BROWSER, "Accept-Language": accept})
    assert f'<html lang="{language}">' in page.text


def test_a_chosen_language_and_theme_are_remembered(site_client: FlaskClient) -> None:
    site_client.get("/setup?language=zh-CN", headers=BROWSER)
    site_client.set_cookie("trivet_theme", "dark")
    page = site_client.get("/setup", headers={**BROWSER, "Accept-Language": "en"})
    assert '<html lang="zh-CN" data-theme="dark">' in page.text


def test_what_a_cookie_names_is_no_theme_unless_it_is_one(site_client: FlaskClient) -> None:
    site_client.set_cookie("trivet_theme", '"><script>')
    assert "data-theme" not in site_client.get("/setup", headers=BROWSER).text


def test_every_right_that_a_page_needs_has_a_word() -> None:
    assert {page.right for page in PAGES} <= set(Right)
