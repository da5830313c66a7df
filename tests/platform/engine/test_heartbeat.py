"""The heart beats and listens whatever the loop thread does."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
import zmq

from trivet.bound_socket import is_as_bound
from trivet.endpoints import local_endpoints
from trivet.engine import heartbeat
from trivet.engine.heartbeat import Heart
from trivet.engine.step_pace import MIN_STALL_S
from trivet.messages import (
    RESIDENT,
    ControlRequest,
    Drain,
    EngineLoad,
    LaunchOrder,
    Phase,
    Stop,
    Watch,
)

DEADLINE_S = 60.0


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


@pytest.fixture
def watcher(tmp_path: Path, watch: Any) -> Any:
    return watch(tmp_path, "i1")


@pytest.fixture
def received() -> list[ControlRequest]:
    return []


@pytest.fixture
def hangs() -> list[float]:
    return []


@pytest.fixture
def heart(tmp_path: Path, received: list[ControlRequest], hangs: list[float]) -> Iterator[Heart]:
    heart = Heart(order(tmp_path), received.append, hangs.append)
    heart.start()
    yield heart
    heart.stop()


def wait_for(is_done: Callable[[], bool]) -> None:
    end = time.monotonic() + DEADLINE_S
    while not is_done():
        assert time.monotonic() < end, "the condition did not come true before the deadline"
        time.sleep(0.005)


def test_a_change_of_phase_is_published_with_its_reason(heart: Heart, watcher: Any) -> None:
    watcher.beat_where(lambda beat: beat.phase is Phase.STARTING)
    heart.set_phase(Phase.FAILED, "no memory")
    assert watcher.beat_where(lambda beat: beat.phase is Phase.FAILED).reason == "no memory"


def test_a_step_announces_its_deadline_and_takes_it_back(heart: Heart, watcher: Any) -> None:
    heart.begin_step(60.0)
    beat = watcher.beat_where(lambda beat: beat.step_deadline_s is not None)
    assert beat.step_started_s is not None
    assert beat.step_deadline_s == pytest.approx(beat.step_started_s + 60.0)
    assert beat.step_due_s == pytest.approx(beat.step_started_s + MIN_STALL_S)
    heart.end_step(EngineLoad(num_running=3))
    beat = watcher.beat_where(lambda beat: beat.step_deadline_s is None)
    assert beat.step_due_s is None
    assert beat.load.num_running == 3


def test_beats_tell_the_resident_memory_beside_what_the_runner_holds(heart: Heart, watcher: Any) -> None:
    heart.set_memory([("weights", 100)])
    beat = watcher.beat_where(lambda beat: bool(beat.memory))
    told = dict(beat.memory)
    assert told["weights"] == 100
    memory = psutil.Process().memory_info()
    assert told[RESIDENT] == pytest.approx(memory.rss - memory.shared, rel=0.05)


def test_an_engine_without_a_free_descriptor_goes_on_beating(
    heart: Heart, watcher: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    heart.set_memory([("weights", 100)])
    watcher.beat_where(lambda beat: RESIDENT in dict(beat.memory))

    def refuse() -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(heartbeat, "resident_bytes", refuse)
    watcher.beat_where(lambda beat: dict(beat.memory) == {"weights": 100})


def test_control_messages_with_the_lease_are_handed_on(
    heart: Heart, watcher: Any, received: list[ControlRequest]
) -> None:
    watcher.tell(Drain("secret", 5.0))
    wait_for(lambda: received == [Drain("secret", 5.0)])


def test_strangers_and_garbage_are_refused(
    heart: Heart, watcher: Any, received: list[ControlRequest]
) -> None:
    watcher.tell(Stop("guess"))
    watcher.control.send(b"\xff\x00garbage")
    watcher.tell(Watch("secret"))
    watcher.tell(Stop("secret"))
    wait_for(lambda: bool(received))
    assert received == [Stop("secret")]
    watcher.beat_where(lambda beat: True)


def test_an_orphan_ends_itself(tmp_path: Path, received: list[ControlRequest]) -> None:
    heart = Heart(order(tmp_path, orphan_timeout_s=0.2), received.append, [].append)
    heart.start()
    wait_for(lambda: received == [Stop("secret")])
    heart.set_phase(Phase.STOPPING)  # as the loop does
    heart.stop()
    assert received == [Stop("secret")]
    assert heart._beat.reason == "no supervisor was heard for 0.2 s (orphan_timeout_s)"


def test_sockets_that_were_deleted_are_bound_again(tmp_path: Path, received: list[ControlRequest]) -> None:
    unreachable: list[bool] = []
    heart = Heart(order(tmp_path), received.append, [].append, lambda: unreachable.append(True))
    heart.start()
    at = local_endpoints(tmp_path, order(tmp_path).instance_id)
    for address in (at.beat, at.ctl):
        Path(address.removeprefix("ipc://")).unlink()
    wait_for(lambda: is_as_bound(at.beat) and is_as_bound(at.ctl))
    with zmq.Context() as context, context.socket(zmq.DEALER) as control:
        control.connect(at.ctl)
        control.send(msgspec.msgpack.encode(Stop("secret")))
        wait_for(lambda: received == [Stop("secret")])
    assert not unreachable, "while it loads there is no socket of the loop"
    heart.set_phase(Phase.READY)
    wait_for(lambda: bool(unreachable))
    heart.stop()


def test_a_step_past_its_deadline_at_two_beats_hangs(heart: Heart, watcher: Any, hangs: list[float]) -> None:
    heart.begin_step(60.0)
    watcher.beat_where(lambda beat: beat.step_deadline_s is not None)
    heart.end_step(EngineLoad())
    heart.begin_step(0.1)
    wait_for(lambda: bool(hangs))
    assert 0.5 < hangs[0] < DEADLINE_S


def test_steps_that_are_late_and_end_hang_nobody(heart: Heart, watcher: Any, hangs: list[float]) -> None:
    for _ in range(3):
        heart.begin_step(0.0)
        watcher.beat_where(lambda beat: beat.step_deadline_s is not None)
        heart.end_step(EngineLoad())
        watcher.beat_where(lambda beat: beat.step_deadline_s is None)
    assert hangs == []
