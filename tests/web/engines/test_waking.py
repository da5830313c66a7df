"""Requests for a deployment that was unloaded because nobody used it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import pytest

from trivet.errors import TrivetError, Unavailable
from trivet_registry.deployment_changes import Update, sleep_deployment, update_deployment
from trivet_registry.deployments_store import get_deployment, stop_deployment
from trivet_registry.events_store import list_events
from trivet_registry.instance_state import InstanceState as State
from trivet_web.engines.mailbox import Loss, Mailbox
from trivet_web.engines.routing import Deployed, Router
from trivet_web.engines.waking import InstanceReady, Waker

if TYPE_CHECKING:
    from conftest import Eventually, Site
    from flask.testing import FlaskClient

BODY = {"model": "demo", "prompt": "x", "max_tokens": 2}


@pytest.fixture
def asleep(site: Site) -> Site:
    with site.database.session() as session:
        update_deployment(session, "demo", Update(settings={"idle_timeout_s": "60"}))
        sleep_deployment(session, "demo", "no request for 60 s")
    return site


class Request(threading.Thread):
    """One on its way; `answer` once it is there."""

    def __init__(self, client: FlaskClient, **fields: Any) -> None:
        super().__init__(daemon=True)
        self._client = client
        self._body = {**BODY, **fields}
        self.answer: Any = None
        self.data = b""
        self.start()

    def run(self) -> None:
        self.answer = self._client.post("/v1/completions", json=self._body)
        for piece in self.answer.iter_encoded():
            self.data += piece

    def end(self) -> Any:
        self.join(60)
        assert not self.is_alive()
        return self.answer


def is_asleep(site: Site) -> bool:
    with site.database.reading() as session:
        return get_deployment(session, "demo").is_asleep


def test_a_request_wakes_it_once_and_is_answered(
    asleep: Site, site_client: FlaskClient, eventually: Eventually
) -> None:
    assert site_client.get("/health/ready").status_code == 200, "it would serve"
    requests = [Request(site_client) for _ in range(3)]
    eventually(lambda: not is_asleep(asleep), what="it is woken")
    asleep.start_engine()
    assert [request.end().status_code for request in requests] == [200] * 3
    with asleep.database.reading() as session:
        wakings = [e for e in list_events(session, deployment="demo") if e.reason == "a request woke it"]
    assert len(wakings) == 1


def test_a_stream_is_kept_alive_while_the_model_loads(
    asleep: Site, site_client: FlaskClient, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trivet_web.answers.sse.FIRST_PIECE_WAIT_S", 0.05)
    monkeypatch.setattr("trivet_web.answers.sse.PING_S", 0.05)
    request = Request(site_client, stream=True)
    eventually(lambda: request.data.count(b": ping") >= 3, what="pings before any token")
    assert b"data: " not in request.data
    asleep.start_engine()
    request.end()
    assert request.data.endswith(b"data: [DONE]\n\n")


def test_its_own_deadline_ends_the_waiting(asleep: Site, site_client: FlaskClient) -> None:
    request = Request(site_client, timeout=1)
    assert request.end().status_code == 503
    error = json.loads(request.data)["error"]
    assert error["code"] == "deadline_passed"
    assert "was not loaded before the deadline" in error["message"]
    assert not is_asleep(asleep), "the next finds it loaded"


def stop(site: Site) -> None:
    with site.database.session() as session:
        stop_deployment(session, "demo")


def fail(site: Site) -> None:
    site.add_instance(State.PLACING, State.FAILED, reason="0.1 GiB is left")


def scale_to_0(site: Site) -> None:
    with site.database.session() as session:
        update_deployment(session, "demo", Update(replicas=0))


@pytest.mark.parametrize(
    ("mishap", "words"),
    [
        (stop, "was stopped while"),
        (fail, "cannot be loaded: 0.1 GiB is left"),
        (scale_to_0, "cannot be loaded: it has 0 replicas: trivet scale demo 1"),
    ],
)
def test_what_will_never_be_loaded_is_told_at_once(
    asleep: Site,
    site_client: FlaskClient,
    eventually: Eventually,
    mishap: Callable[[Site], None],
    words: str,
) -> None:
    request = Request(site_client)
    eventually(lambda: not is_asleep(asleep), what="it is woken")
    mishap(asleep)
    assert request.end().status_code == 503
    assert words in json.loads(request.data)["error"]["message"]


def test_a_deployment_of_0_replicas_is_waited_for_by_nobody(asleep: Site, site_client: FlaskClient) -> None:
    """Else a request would wait for a quarter of an hour, for what nobody starts."""
    scale_to_0(asleep)
    request = Request(site_client)
    assert request.end().status_code == 503
    message = json.loads(request.data)["error"]["message"]
    assert message.endswith(
        "it was scaled to 0 replicas; an operator starts it again with `trivet scale demo 1`"
    )
    assert site_client.get("/health/ready").status_code == 503


def test_a_request_that_meets_its_unloading_waits_for_the_next_instance(
    asleep: Site, site_client: FlaskClient, eventually: Eventually
) -> None:
    """The registry says ready, and the engine has just gone."""
    with asleep.database.session() as session:
        get_deployment(session, "demo").is_asleep = False
    asleep.start_engine().kill()
    request = Request(site_client)
    eventually(lambda: request.is_alive(), what="it waits")
    asleep.start_engine()
    assert request.end().status_code == 200


class OneDeployment:
    """A router that knows one, asleep until it `is_ready`."""

    def __init__(self) -> None:
        self.is_ready = False

    def table(self, *, fresh: bool) -> dict[str, Deployed]:
        return {"demo": Deployed("demo", "", 0, is_asleep=True)}

    def has_instance(self, deployed: Deployed) -> bool:
        return self.is_ready

    def why_not(self, deployed: Deployed) -> str:
        return "it is asleep"


def put(mailbox: Mailbox, error: TrivetError, choice: int | None) -> None:
    mailbox.fail(error, choice)


class Compared(Mailbox):
    """Counts how often any two of them are compared."""

    count = 0

    def __eq__(self, other: object) -> bool:
        Compared.count += 1
        return self is other

    def __hash__(self) -> int:
        return id(self)


def test_thousands_are_told_without_comparing_each_with_each(eventually: Eventually) -> None:
    """Each waits for all others otherwise, and with them whatever else this process does."""
    router = OneDeployment()
    waker = Waker(cast("Router", router), lambda name: None, put)
    boxes = [Compared() for _ in range(500)]
    for box in boxes:
        for choice in range(2):
            waker.wait("demo", box, choice, None)
    waker.forget(boxes[0])
    router.is_ready = True
    for box in boxes[1:]:
        eventually(lambda box=box: box.num_unread == 2, what="it is told")  # type: ignore[misc]
        assert [(type(loss.error), loss.choice) for loss in box.read(1) if isinstance(loss, Loss)] == [
            (InstanceReady, 0),
            (InstanceReady, 1),
        ]
    assert boxes[0].num_unread == 0
    assert Compared.count < 10 * len(boxes)


def test_where_no_thread_can_be_started_a_request_is_told_so_and_the_next_is_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    router, start = OneDeployment(), threading.Thread.start
    router.is_ready = True
    waker = Waker(cast("Router", router), lambda name: None, put)
    is_limited = True

    def limited(thread: threading.Thread) -> None:
        if is_limited and thread.name == "waker":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)
    first, second = Mailbox(), Mailbox()
    waker.wait("demo", first, 0, None)
    (refused,) = first.read(20)
    assert isinstance(refused, Loss)
    assert isinstance(refused.error, Unavailable)
    assert "can't start new thread" in refused.error.message
    is_limited = False
    waker.wait("demo", second, 0, None)
    (told,) = second.read(20)
    assert isinstance(told, Loss)
    assert isinstance(told.error, InstanceReady)
    assert first.num_unread == 0


def test_a_fault_with_one_deployment_keeps_nobody_else_waiting(caplog: pytest.LogCaptureFixture) -> None:
    class Two(OneDeployment):
        def table(self, *, fresh: bool) -> dict[str, Deployed]:
            return {name: Deployed(name, "", 0, is_asleep=True) for name in ("broken", "demo")}

        def has_instance(self, deployed: Deployed) -> bool:
            return bool(1 // (deployed.name != "broken"))

    waker = Waker(cast("Router", Two()), lambda name: None, put)
    broken, good = Mailbox(), Mailbox()
    waker.wait("broken", broken, 0, None)
    waker.wait("demo", good, 0, None)
    assert good.read(20)
    waker.forget(broken)
    assert "model=broken" in caplog.text
