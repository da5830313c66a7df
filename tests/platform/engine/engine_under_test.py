"""An engine process on the null backend, and the two that talk to one."""

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
from trivet.messages import EngineRequest, LaunchOrder, Piece, StepReport

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
