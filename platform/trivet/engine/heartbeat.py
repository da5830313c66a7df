"""The engine's second thread: it beats the heart and takes control messages, also while a model loads.

It shares nothing with the loop thread but a small state under a lock, so a step that takes long, or a
load that holds the loop, never makes the engine look dead or deaf. It also sees a step that does not end.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import zmq

from trivet.engine.doors import Doors
from trivet.engine.log_bound import LogBound
from trivet.engine.step_pace import StepPace
from trivet.messages import (
    BEAT_INTERVAL_S,
    RESIDENT,
    Beat,
    ControlRequest,
    EngineLoad,
    LaunchOrder,
    Phase,
    Stop,
    Watch,
)

logger = logging.getLogger(__name__)


def resident_bytes(statm: Path = Path("/proc/self/statm")) -> int:
    """Of this process, in memory now, without pages of files: the kernel shares and drops them. 20 us."""
    resident, shared = map(int, statm.read_text().split()[1:3])
    return (resident - shared) * os.sysconf("SC_PAGE_SIZE")


def _resident() -> list[tuple[str, int]]:
    try:
        return [(RESIDENT, resident_bytes())]
    except OSError:  # no descriptor is free: the beat goes out without it
        return []


class Heart(threading.Thread):
    """Publishes `Beat`s, hands `Drain` and `Stop` to `on_control`, and calls `on_hang` (on this thread).

    `on_hang` gets the seconds for which a step has run when its deadline is over at two beats in a row: a
    process that was stopped and goes on finds the deadline over at its first. `on_unreachable`: the file of
    the loop's socket is gone; no web server that comes anew could connect to it.
    """

    def __init__(
        self,
        order: LaunchOrder,
        on_control: Callable[[ControlRequest], None],
        on_hang: Callable[[float], None],
        on_unreachable: Callable[[], None] = lambda: None,
        doors: Doors | None = None,  # None: those of the order
    ) -> None:
        super().__init__(name="heart", daemon=True)
        self._order = order
        self._on_control = on_control
        self._on_hang = on_hang
        self._on_unreachable = on_unreachable
        self._doors = doors or Doors(order)
        self._log = LogBound()
        self._memory: list[tuple[str, int]] = []
        self._pace = StepPace()
        self._late_step_s: float | None = None  # when the step began that was late at the last beat
        self._lock = threading.Lock()
        self._beat = Beat(order.instance_id, order.lease, os.getpid(), 0, Phase.STARTING)
        self._wake = os.eventfd(0, os.EFD_NONBLOCK)
        self._ending = False
        self._decoder = msgspec.msgpack.Decoder(ControlRequest)
        self._watched_s = time.monotonic()
        self._orphaned_because = ""  # and so it ends itself
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
        self._beats = context.socket(zmq.PUB)
        self._control = context.socket(zmq.ROUTER)
        self._beats.linger = 1000
        self._control.linger = 0
        self._doors.open(self._beats, "beat")
        self._doors.open(self._control, "ctl")

    # ---- called by the loop thread ----

    def set_phase(self, phase: Phase, reason: str = "") -> None:
        """Published at once."""
        self._replace(phase=phase, reason=reason or self._orphaned_because)
        os.eventfd_write(self._wake, 1)

    def set_progress(self, done: int, total: int) -> None:
        self._replace(progress_done=done, progress_total=total)

    def set_memory(self, parts: list[tuple[str, int]]) -> None:
        """What the runner holds; from now on beats say beside it how much of the process is resident."""
        self._memory = parts

    def set_notices(self, notices: list[str]) -> None:
        self._replace(notices=notices)

    def set_adapters(self, names: tuple[str, ...]) -> None:
        """Of those that requests may name now."""
        self._replace(adapters=names)

    def begin_step(self, timeout_s: float) -> None:
        now = time.monotonic()
        due_s = self._pace.due_s(now)
        self._replace(step_started_s=now, step_deadline_s=now + timeout_s, step_due_s=due_s)

    def end_step(self, load: EngineLoad) -> None:
        started_s = self._beat.step_started_s
        if started_s is not None:
            self._pace.observe(time.monotonic() - started_s)
        self._replace(step_started_s=None, step_deadline_s=None, step_due_s=None, load=load)

    def set_load(self, load: EngineLoad) -> None:
        """Published at once."""
        self._replace(load=load)
        os.eventfd_write(self._wake, 1)

    def stop(self) -> None:
        """The last beat has been sent when it returns."""
        self._ending = True
        os.eventfd_write(self._wake, 1)
        self.join(timeout=5)

    @property
    def phase(self) -> Phase:
        return self._beat.phase

    # ---- the thread ----

    def run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._control, zmq.POLLIN)
        poller.register(self._wake, zmq.POLLIN)
        while not self._ending:
            self._send_beat()
            events = dict(poller.poll(timeout=int(BEAT_INTERVAL_S * 1000)))
            if self._wake in events:
                os.eventfd_read(self._wake)
            if self._control in events:
                self._take_control_message()
            self._end_if_orphaned()
            self._look_at_step()
            self._keep_bound()
            self._log.enforce()
        self._send_beat()
        self._beats.close()
        self._control.close()

    def publish_last(self) -> None:
        """On this thread, before the process ends itself: the beat as it is reaches its subscribers."""
        self._send_beat()
        time.sleep(2 * BEAT_INTERVAL_S)

    def _keep_bound(self) -> None:
        """The loop's socket is bound again by the loop."""
        try:
            self._doors.keep_open(self._beats, "beat")
            self._doors.keep_open(self._control, "ctl")
        except zmq.ZMQError as error:
            logger.error("a socket cannot be bound again: %s", error)
        if self._beat.phase is Phase.READY and not self._doors.is_open("sock"):
            self._on_unreachable()

    def _look_at_step(self) -> None:
        beat, now = self._beat, time.monotonic()
        if beat.step_started_s is None or beat.step_deadline_s is None or now < beat.step_deadline_s:
            self._late_step_s = None
        elif self._late_step_s == beat.step_started_s:
            self._on_hang(now - beat.step_started_s)
        else:
            self._late_step_s = beat.step_started_s

    def _replace(self, **changes: object) -> None:
        with self._lock:
            self._beat = msgspec.structs.replace(self._beat, **changes)

    def _send_beat(self) -> None:
        memory = [*self._memory, *_resident()] if self._memory else []
        sent_s = time.monotonic() if self._doors.is_remote else None
        self._replace(sequence=self._beat.sequence + 1, memory=memory, sent_s=sent_s)
        self._beats.send(msgspec.msgpack.encode(self._beat))

    def _take_control_message(self) -> None:
        frames = self._control.recv_multipart()
        try:
            request = self._decoder.decode(frames[-1])
        except msgspec.DecodeError as error:
            logger.warning("control message refused: %s", error)
            return
        if request.lease != self._order.lease:
            logger.warning("control message %s refused: wrong lease", type(request).__name__)
            return
        self._watched_s = time.monotonic()
        if not isinstance(request, Watch):
            self._on_control(request)

    def _end_if_orphaned(self) -> None:
        limit_s = self._order.orphan_timeout_s
        if limit_s is not None and time.monotonic() - self._watched_s > limit_s:
            self._orphaned_because = f"no supervisor was heard for {limit_s:g} s (orphan_timeout_s)"
            logger.error("%s: the engine ends itself", self._orphaned_because)
            self._replace(reason=self._orphaned_because)
            self._watched_s = float("inf")
            self._on_control(Stop(self._order.lease))
