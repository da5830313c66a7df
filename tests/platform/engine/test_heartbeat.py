"""The heart beats and listens whatever the loop thread does."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
import zmq

from trivet.config import engine_address
from trivet.engine.heartbeat import Heart
from trivet.messages import Beat, ControlRequest, Drain, EngineLoad, LaunchOrder, Phase, Stop, Watch

DEADLINE_S = 10.0


def order(run_dir: Path, orphan_timeout_s: float | None = None) -> LaunchOrder:
    return LaunchOrder(
        instance_id="i1",
        lease="secret",
        model_path="",
        served_model_name="m",
        backend="null",
        device_uids=[],
        settings={},
        run_dir=str(run_dir),
        orphan_timeout_s=orphan_timeout_s,
    )


class Watcher:
    """A supervisor's end of both sockets."""

    def __init__(self, run_dir: Path) -> None:
        context = zmq.Context.instance()
        self.beats = context.socket(zmq.SUB)
        self.beats.subscribe(b"")
        self.beats.connect(engine_address(run_dir, "i1", "beat"))
        self.control = context.socket(zmq.DEALER)
        self.control.linger = 0
        self.control.connect(engine_address(run_dir, "i1", "ctl"))

    def beat_where(self, is_wanted: Callable[[Beat], bool]) -> Beat:
        end = time.monotonic() + DEADLINE_S
        while time.monotonic() < end:
            if self.beats.poll(100):
                beat = msgspec.msgpack.decode(self.beats.recv(), type=Beat)
                if is_wanted(beat):
                    return beat
        raise AssertionError("no such beat before the deadline")

    def tell(self, request: ControlRequest) -> None:
        self.control.send(msgspec.msgpack.encode(request))

    def close(self) -> None:
        self.beats.close()
        self.control.close()


@pytest.fixture
def watcher(tmp_path: Path) -> Iterator[Watcher]:
    watcher = Watcher(tmp_path)
    yield watcher
    watcher.close()


@pytest.fixture
def received() -> list[ControlRequest]:
    return []


@pytest.fixture
def heart(tmp_path: Path, received: list[ControlRequest]) -> Iterator[Heart]:
    heart = Heart(order(tmp_path), received.append)
    heart.start()
    yield heart
    heart.stop()


def wait_for(is_done: Callable[[], bool]) -> None:
    end = time.monotonic() + DEADLINE_S
    while not is_done():
        assert time.monotonic() < end, "the condition did not come true before the deadline"
        time.sleep(0.005)


def test_a_change_of_phase_is_published_with_its_reason(heart: Heart, watcher: Watcher) -> None:
    watcher.beat_where(lambda beat: beat.phase is Phase.STARTING)
    heart.set_phase(Phase.FAILED, "no memory")
    assert watcher.beat_where(lambda beat: beat.phase is Phase.FAILED).reason == "no memory"


def test_a_step_announces_its_deadline_and_takes_it_back(heart: Heart, watcher: Watcher) -> None:
    heart.begin_step(60.0)
    beat = watcher.beat_where(lambda beat: beat.step_deadline_s is not None)
    assert beat.step_started_s is not None
    assert beat.step_deadline_s == pytest.approx(beat.step_started_s + 60.0)
    heart.end_step(EngineLoad(num_running=3))
    beat = watcher.beat_where(lambda beat: beat.step_deadline_s is None)
    assert beat.load.num_running == 3


def test_control_messages_with_the_lease_are_handed_on(
    heart: Heart, watcher: Watcher, received: list[ControlRequest]
) -> None:
    watcher.tell(Drain("secret", 5.0))
    wait_for(lambda: received == [Drain("secret", 5.0)])


def test_strangers_and_garbage_are_refused(
    heart: Heart, watcher: Watcher, received: list[ControlRequest]
) -> None:
    watcher.tell(Stop("guess"))
    watcher.control.send(b"\xff\x00garbage")
    watcher.tell(Watch("secret"))
    watcher.tell(Stop("secret"))
    wait_for(lambda: bool(received))
    assert received == [Stop("secret")]
    watcher.beat_where(lambda beat: True)


def test_an_orphan_ends_itself(tmp_path: Path, received: list[ControlRequest]) -> None:
    heart = Heart(order(tmp_path, orphan_timeout_s=0.2), received.append)
    heart.start()
    wait_for(lambda: received == [Stop("secret")])
    heart.stop()
    assert received == [Stop("secret")]
