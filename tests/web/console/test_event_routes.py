"""GET /console/events on the real server: what a tab gets, and that it holds no thread."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import IO, TYPE_CHECKING, Any

import pytest

from trivet_registry.instance_state import InstanceState as State

if TYPE_CHECKING:
    from conftest import Live, Server, Site
    from flask.testing import FlaskClient

MANY = 100  # tabs: more than the server has threads
ALL = "deployments,devices,events,instances,metrics,site"


@contextmanager
def open_tab(server: Server, site: Site, topics: str) -> Iterator[IO[bytes]]:
    request = urllib.request.Request(f"{server.url}/console/events?topics={topics}")
    request.add_header("Authorization", f"Bearer {site.token}")
    with urllib.request.urlopen(request, timeout=30) as response:
        assert response.headers["Content-Type"].startswith("text/event-stream")
        yield response


def next_of(tab: IO[bytes], topic: str) -> Any:
    """Data of the next event of a topic."""
    end_s, name = time.monotonic() + 30, ""
    while time.monotonic() < end_s:
        line = tab.readline().decode().rstrip("\n")
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        if line.startswith("data: ") and name == topic:
            return json.loads(line.removeprefix("data: "))
    raise AssertionError(f"no event of {topic}")


def test_a_tab_sees_an_instance_come(live: Live) -> None:
    with open_tab(live.server, live.site, "instances") as tab:
        assert next_of(tab, "instances") == {"all": []}
        instance = live.site.add_instance(State.PLACING)
        (told,) = next_of(tab, "instances")["set"]
        assert (told["id"], told["state"]) == (instance, "placing")


def test_figures_come_each_second(live: Live) -> None:
    with open_tab(live.server, live.site, "metrics") as tab:
        first, *_, last = (
            next_of(tab, "metrics")["set"][0] for _ in range(3)
        )  # a busy machine says one twice
    assert last["at"] > first["at"]
    assert {"name": "supervisor_up", "labels": {}, "value": 0.0} in last["figures"]


def test_many_tabs_leave_the_server_free(live: Live) -> None:
    with ExitStack() as stack:
        tabs = [stack.enter_context(open_tab(live.server, live.site, "site")) for _ in range(MANY)]
        assert all("all" in next_of(tab, "site") for tab in tabs)
        assert live.server.get("/health")[0] == 200


@pytest.mark.parametrize("topics", ["", "nonsense", "site,nonsense"])
def test_a_topic_that_is_none_is_a_400(client: FlaskClient, topics: str) -> None:
    token = client.application.extensions["trivet"].token
    answer = client.get(f"/console/events?topics={topics}", headers={"Authorization": f"Bearer {token}"})
    assert answer.status_code == 400
    assert answer.get_json()["error"]["param"] == "topics"


def test_nobody_listens_without_a_login(client: FlaskClient) -> None:
    assert client.get(f"/console/events?topics={ALL}").status_code == 401
