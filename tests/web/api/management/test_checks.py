"""What the doctor finds out, for pages: its own findings, and what happens when it hangs or breaks."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from trivet.errors import Unavailable
from trivet_web.api.management.checks import examine
from trivet_web.web_process import EXTENSION

if TYPE_CHECKING:
    from conftest import Site
    from flask.testing import FlaskClient


def test_the_findings_are_the_doctors_of_this_home(
    site: Site, site_client: FlaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRIVET_HOME", str(site.settings.paths.home))
    headers = {"Authorization": f"Bearer {site.token}"}
    answer = site_client.get("/platform/v1/checks", headers=headers)
    found = {one["check"]: one for one in answer.get_json()["data"]}
    assert found["python"]["status"] == "ok"
    assert found["home"]["text"] == str(site.settings.paths.home)


def test_one_that_hangs_is_ended_and_one_that_breaks_is_told() -> None:
    with pytest.raises(Unavailable, match="not done within 0 s"):
        examine((sys.executable, "-c", "import time; time.sleep(60)"), limit_s=0.2)
    with pytest.raises(Unavailable, match="no findings"):
        examine((sys.executable, "-c", "print('no JSON')"))


def test_a_second_one_at_the_same_time_is_told_to_wait(site: Site, site_client: FlaskClient) -> None:
    with site_client.application.extensions[EXTENSION].is_checking:
        answer = site_client.get("/platform/v1/checks", headers={"Authorization": f"Bearer {site.token}"})
    assert (answer.status_code, answer.headers["Retry-After"]) == (429, "5")
