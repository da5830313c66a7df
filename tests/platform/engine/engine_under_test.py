"""An engine process on the null backend, and those that talk to one."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import zmq

from trivet.config import engine_address
from trivet.messages import Beat, ControlRequest, EngineRequest, LaunchOrder, Piece, StepReport

DEADLINE_S = 60.0


class EngineUnderTest:
    """The process, and a supervisor's view of it."""

    def __init__(self, run_dir: Path, model: Path, settings: dict[str, str], watch: Any) -> None:
        self.run_dir = run_dir
        order = LaunchOrder(
            instance_id="t1",
            lease="lease",
            model_path=str(model),
            served_model_name="tiny",
            backend="null",
            device_uids=[],
            settings=settings,
            run_dir=str(run_dir),
        )
        file = run_dir / "order.json"
        file.write_bytes(msgspec.json.encode(order))
        self.watcher = watch(run_dir, "t1")
        self.beat_where, self.tell = self.watcher.beat_where, self.watcher.tell
        self.process = subprocess.Popen(
            [sys.executable, "-m", "trivet.engine.process", str(file)], start_new_session=True
        )

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(DEADLINE_S)


class Worker:
    """A web worker's end of the data socket."""

    def __init__(self, run_dir: Path) -> None:
        self.socket = zmq.Context.instance().socket(zmq.DEALER)
        self.socket.linger = 0
        self.socket.connect(engine_address(run_dir, "t1", "sock"))

    def ask(self, request: EngineRequest) -> None:
        self.socket.send(msgspec.msgpack.encode(request))

    def pieces(self, request_id: str, is_last: Callable[[Piece], bool] | None = None) -> list[Piece]:
        """The request's pieces up to the one that ends it (or is wanted)."""
        is_last = is_last or (lambda piece: piece.finish_reason is not None)
        found: list[Piece] = []
        end = time.monotonic() + DEADLINE_S
        while time.monotonic() < end:
            if self.socket.poll(100):
                report = msgspec.msgpack.decode(self.socket.recv(), type=StepReport)
                for piece in report.pieces:
                    if piece.request_id == request_id:
                        found.append(piece)
                        if is_last(piece):
                            return found
        raise AssertionError(f"{request_id} did not end before the deadline; {len(found)} pieces")


class Watcher:
    """A supervisor's end of an engine's two small sockets."""

    def __init__(self, run_dir: Path, instance_id: str) -> None:
        context = zmq.Context.instance()
        self.beats = context.socket(zmq.SUB)
        self.beats.subscribe(b"")
        self.beats.connect(engine_address(run_dir, instance_id, "beat"))
        self.control = context.socket(zmq.DEALER)
        self.control.linger = 0
        self.control.connect(engine_address(run_dir, instance_id, "ctl"))

    def beat_where(self, is_wanted: Callable[[Beat], bool], deadline_s: float = 60.0) -> Beat:
        end = time.monotonic() + deadline_s
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
