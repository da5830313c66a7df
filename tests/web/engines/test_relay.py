"""The relay with engine processes that are killed, frozen, slow, or not there."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec
import pytest
import zmq
from gunicorn.arbiter import Arbiter

from trivet.config import engine_address
from trivet.endpoints import Endpoints, local_endpoints
from trivet.errors import EngineLost, TrivetError, Unavailable
from trivet.messages import SILENCE_LIMIT_S, Beat, FinishReason, Phase, Submit
from trivet.sampling_params import SamplingParams
from trivet_web.engines.engine_link import Connection, EngineLink, EngineView, ReaderTooSlow
from trivet_web.engines.mailbox import Arrival, Loss, Mailbox
from trivet_web.engines.relay import EXIT_CRASHED, Relay

if TYPE_CHECKING:
    from conftest import Eventually, Site


class Clock:
    """CLOCK_MONOTONIC, and a jump."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.ahead_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def relay(site: Site, clock: Clock) -> Iterator[Relay]:
    made = Relay(site.run_dir, clock)
    yield made
    made.close()


def submit(name: str, max_tokens: int) -> Submit:
    return Submit(name, [1, 2, 3], SamplingParams(max_tokens=max_tokens))


def read_all(mailbox: Mailbox) -> tuple[str, FinishReason | TrivetError | None]:
    """The text, and how it ended."""
    text = ""
    while True:
        items = mailbox.read(20)
        assert items, "nothing came within 20 s"
        for item in items:
            if isinstance(item, Loss):
                return text, item.error
            text += item.piece.text
            if item.piece.finish_reason is not None:
                return text, item.piece.finish_reason


def test_sequences_of_several_requests_arrive_in_their_own_mailboxes(site: Site, relay: Relay) -> None:
    engine = site.start_engine()
    boxes = [Mailbox() for _ in range(20)]
    for number, box in enumerate(boxes):
        relay.submit(engine.instance, submit(f"r{number}", number + 1), box, 0)
    for number, box in enumerate(boxes):
        text, end = read_all(box)
        assert len(text.split()) == number + 1
        assert end is FinishReason.LENGTH


def test_killed_engine_ends_its_requests_at_once(site: Site, relay: Relay) -> None:
    engine = site.start_engine("--first-s", "60")
    other = site.start_engine("--step-s", "0.01")
    mailbox, untouched = Mailbox(), Mailbox()
    relay.submit(engine.instance, submit("r", 5), mailbox, 0)
    relay.submit(other.instance, submit("r", 50), untouched, 0)
    assert isinstance(untouched.read(20)[0], Arrival)
    engine.kill()
    end = read_all(mailbox)[1]
    assert isinstance(end, EngineLost)
    assert f"{engine.instance} ended" in str(end), "seen by its connection, not by its silence"
    assert read_all(untouched)[1] is FinishReason.LENGTH


def test_end_of_an_idle_engine_is_noticed(site: Site, relay: Relay, eventually: Eventually) -> None:
    engine = site.start_engine()
    relay.watch([engine.instance])

    def view_says(can_serve: bool) -> bool:
        view = relay.view(engine.instance)
        return view is not None and view.beat is not None and view.can_serve is can_serve

    eventually(lambda: view_says(True), what="the engine is seen")
    engine.kill()
    eventually(lambda: view_says(False), what="its end is seen")
    assert relay.view(engine.instance).why_not == "ended"


def test_engine_that_was_never_there_is_lost_at_once(relay: Relay) -> None:
    mailbox = Mailbox()
    relay.submit("ffffffff", submit("r", 5), mailbox, 0)
    assert isinstance(read_all(mailbox)[1], EngineLost)


def test_frozen_engine_is_lost_by_its_silence(site: Site, relay: Relay, eventually: Eventually) -> None:
    frozen = site.start_engine("--first-s", "60")
    relay.watch([frozen.instance])
    mailbox = Mailbox()
    relay.submit(frozen.instance, submit("r", 5), mailbox, 0)
    eventually(
        lambda: (view := relay.view(frozen.instance)) is not None and view.load.num_running == 1,
        what="the request runs",
    )
    frozen.freeze()
    begun_s = time.monotonic()
    end = read_all(mailbox)[1]
    assert time.monotonic() - begun_s >= SILENCE_LIMIT_S / 2, "its last beat came before it was frozen"
    assert isinstance(end, EngineLost)
    assert "silent" in str(end)


def test_process_that_slept_itself_takes_no_engine_for_lost(
    site: Site, relay: Relay, clock: Clock, eventually: Eventually
) -> None:
    engine = site.start_engine("--step-s", "1", "--beat-s", "1.5")
    relay.watch([engine.instance])
    mailbox = Mailbox()
    relay.submit(engine.instance, submit("r", 2), mailbox, 0)
    assert mailbox.read(20)
    clock.ahead_s += 3600
    assert read_all(mailbox)[1] is FinishReason.LENGTH


def test_aborted_request_stops_in_the_engine(site: Site, relay: Relay, eventually: Eventually) -> None:
    engine = site.start_engine("--step-s", "0.02")
    relay.watch([engine.instance])
    mailbox = Mailbox()
    relay.submit(engine.instance, submit("r", 10_000), mailbox, 0)
    assert mailbox.read(20)
    relay.abort(engine.instance, "r")
    relay.abort(engine.instance, "never there")
    eventually(
        lambda: (
            (view := relay.view(engine.instance)) is not None and view.load.num_finished.get("abort") == 1
        ),
        what="the engine has aborted it",
    )


def test_reader_that_stops_reading_loses_its_request_and_nothing_else(site: Site, relay: Relay) -> None:
    engine = site.start_engine("--step-s", "0")
    tiny, other = Mailbox(capacity_bytes=2000), Mailbox()
    relay.submit(engine.instance, submit("slow", 10_000), tiny, 0)
    relay.submit(engine.instance, submit("other", 300), other, 0)
    assert read_all(other)[1] is FinishReason.LENGTH
    assert isinstance(read_all(tiny)[1], ReaderTooSlow)


def test_close_ends_open_requests(site: Site) -> None:
    engine = site.start_engine("--first-s", "60")
    relay = Relay(site.run_dir)
    mailbox = Mailbox()
    relay.submit(engine.instance, submit("r", 5), mailbox, 0)
    relay.close()
    end = read_all(mailbox)[1]
    assert isinstance(end, Unavailable)
    assert end.code == "unavailable", "no engine was lost"


def test_engine_that_comes_back_at_the_same_address_does_not_hide_its_end(site: Site) -> None:
    """As a web process sees it that was held up while the engine was started again."""
    address = local_endpoints(site.run_dir, "abcdef12").sock

    def start(engine: zmq.Socket[bytes]) -> None:
        engine.linger = 0
        engine.bind(address)
        link.socket.send(b"hello")
        assert engine.poll(20_000), "it is not connected"

    with zmq.Context() as context:
        endpoints = local_endpoints(site.run_dir, "abcdef12")
        link = EngineLink(context, "abcdef12", endpoints, site.settings.paths.engine_keys_file, 0.0)
        try:
            # A context of its own: when it has ended, so has the removal of the socket's file.
            with zmq.Context() as first, first.socket(zmq.ROUTER) as engine:
                start(engine)
            with zmq.Context() as second, second.socket(zmq.ROUTER) as engine:
                start(engine)
                link.on_monitor()
            assert link.connection is Connection.LOST
        finally:
            link.close()


@pytest.mark.parametrize("place", ["sock", "beat"])
def test_engine_of_another_version_ends_its_own_requests_only(site: Site, relay: Relay, place: str) -> None:
    good = site.start_engine("--step-s", "0.01")
    with zmq.Context() as context:
        router, beats = context.socket(zmq.ROUTER), context.socket(zmq.PUB)
        router.bind(engine_address(site.run_dir, "abcdef12", "sock"))
        beats.bind(engine_address(site.run_dir, "abcdef12", "beat"))
        relay.watch(["abcdef12", good.instance])
        foreign, own = Mailbox(), Mailbox()
        relay.submit("abcdef12", submit("r", 5), foreign, 0)
        assert router.poll(20_000)
        sender = router.recv_multipart()[0]
        if place == "sock":
            router.send_multipart([sender, b"\xc1 no report"])
            assert "cannot read" in str(read_all(foreign)[1])
        else:
            good_beat = msgspec.msgpack.encode(Beat("abcdef12", "lease", 1, 1, Phase.READY))
            deadline_s = time.monotonic() + 20
            while (view := relay.view("abcdef12")) is None or view.beat is None:  # until it has subscribed
                assert time.monotonic() < deadline_s
                beats.send(b"\xc1 no beat")
                beats.send(good_beat)
                beats.poll(10, zmq.POLLIN)
        relay.submit(good.instance, submit("q", 3), own, 0)
        assert read_all(own)[1] is FinishReason.LENGTH
        router.close(0)
        beats.close(0)


def test_end_of_all_is_no_loss_that_another_replica_could_mend(site: Site, relay: Relay) -> None:
    engine = site.start_engine("--first-s", "60")
    mailbox = Mailbox()
    relay.submit(engine.instance, submit("r", 5), mailbox, 0)
    relay.end_all(EngineLost("the server is shutting down"))
    (loss,) = mailbox.read(20)
    assert isinstance(loss, Loss)
    assert loss.choice is None
    relay.submit(engine.instance, submit("q", 5), mailbox, 0)  # one that was lost before, and is tried again
    (loss,) = mailbox.read(20)
    assert isinstance(loss, Loss)
    assert "shutting down" in loss.error.message


def test_crash_of_the_thread_ends_the_process_so_that_gunicorn_starts_another(site: Site) -> None:
    code = (
        "import sys, threading; from pathlib import Path; from trivet_web.engines.relay import Relay\n"
        "relay = Relay(Path(sys.argv[1]), clock=lambda: 1 // 0); threading.Event().wait(20)"
    )
    command = [sys.executable, "-c", code, str(site.run_dir)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == EXIT_CRASHED
    assert EXIT_CRASHED not in (Arbiter.WORKER_BOOT_ERROR, Arbiter.APP_LOAD_ERROR)
    assert "relay=crashed" in done.stderr
    assert "ZeroDivisionError" in done.stderr


def test_nothing_is_kept_of_an_engine_that_is_no_longer_watched(
    site: Site, relay: Relay, eventually: Eventually
) -> None:
    engine = site.start_engine("--step-s", "0.01")
    relay.watch([engine.instance])
    mailbox = Mailbox()
    relay.submit(engine.instance, submit("r", 10_000), mailbox, 0)
    assert mailbox.read(20)
    relay.watch([])
    engine.kill()
    assert isinstance(read_all(mailbox)[1], EngineLost)
    eventually(lambda: relay.view(engine.instance) is None, what="its view is gone")


def test_an_engine_that_has_the_port_of_one_that_has_ended_is_heard(
    relay: Relay, eventually: Eventually
) -> None:
    """On another host, while the row of the one that has ended is still there; their keys differ."""

    def heard(name: str, beats: zmq.Socket[bytes]) -> bool:
        beats.send(msgspec.msgpack.encode(Beat(name, "lease", 1, 1, Phase.LOADING)))
        beats.poll(10, zmq.POLLIN)
        view = relay.view(name)
        return view is not None and view.beat is not None

    def seen_s(name: str) -> float:
        view = relay.view(name)
        return 0.0 if view is None else view.last_seen_s

    def bind(beats: zmq.Socket[bytes], address: str) -> Endpoints:
        public, beats.curve_secretkey = zmq.curve_keypair()
        beats.curve_publickey, beats.curve_server, beats.linger = public, True, 0
        beats.bind(address)
        place = beats.get_string(zmq.LAST_ENDPOINT)
        return Endpoints(sock=place, beat=place, ctl=place, server_key=public.decode())

    with zmq.Context() as context, context.socket(zmq.PUB) as beats:
        ended = bind(beats, "tcp://127.0.0.1:*")
        relay.locate({"ended": ended})
        relay.watch(["ended"])
        eventually(lambda: heard("ended", beats))
    with zmq.Context() as context, context.socket(zmq.PUB) as beats:
        both = {"ended": ended, "newer": bind(beats, ended.beat)}
        relay.locate(both)
        relay.watch(["ended", "newer"])
        eventually(lambda: heard("newer", beats), what="the newer one is heard beside it")
        relay.watch(["newer"])
        eventually(lambda: relay.view("ended") is None, what="it is followed no more")
        before_s = seen_s("newer")
        eventually(lambda: heard("newer", beats) and seen_s("newer") > before_s, what="it is heard alone")
        relay.watch([])
        eventually(lambda: relay.view("newer") is None, what="nobody is followed")


def test_an_engine_that_has_failed_says_why() -> None:
    view = EngineView("one", last_seen_s=10.0)
    view.on_beat(Beat("one", "lease", 7, 1, Phase.FAILED, reason="the device is lost"), 10.0)
    assert (view.can_serve, view.why_not) == (False, "is failed: the device is lost")


def test_a_beat_that_was_sent_before_the_end_brings_no_engine_back() -> None:
    """It may be read after the connection has closed; a process that was started again has another pid."""
    view = EngineView("one", last_seen_s=10.0)
    view.on_beat(Beat("one", "lease", 7, 1, Phase.READY), 10.0)
    view.lose("ended", 11.0)
    view.on_beat(Beat("one", "lease", 7, 2, Phase.READY), 11.5)
    assert (view.can_serve, view.why_not) == (False, "ended")
    view.on_beat(Beat("one", "lease", 8, 1, Phase.READY), 11.6)
    assert view.can_serve
    view.lose("has been silent for 6 s", 20.0)
    view.on_beat(Beat("one", "lease", 8, 2, Phase.READY), 21.5)
    assert view.can_serve, "an engine that only slept"
