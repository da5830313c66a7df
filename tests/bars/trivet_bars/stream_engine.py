"""An engine that costs next to nothing: `python -m trivet_bars.stream_engine RUN_DIR INSTANCE STEP_S`.

One token for each running sequence and step, whose text is the moment at which it was sent (CLOCK_MONOTONIC,
in ns), so that a client can tell how long it was on its way. A sequence with the seed `SILENT` gets none.
Nothing is counted but what routing reads; when a sequence comes or is aborted is written to `RECORD`.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

import msgspec
import zmq

from trivet.config import engine_address
from trivet.messages import (
    Abort,
    Beat,
    EngineLoad,
    EngineRequest,
    FinishReason,
    Phase,
    Piece,
    StepReport,
    Submit,
)

SILENT = 7
RECORD = "record"  # in the run directory: lines of "submit" or "abort" and CLOCK_MONOTONIC seconds
_encode = msgspec.msgpack.Encoder().encode
_requests = msgspec.msgpack.Decoder(EngineRequest)


class StreamEngine:
    """Sequences by client and request id, each with how many tokens it still gets."""

    def __init__(self, run_dir: Path, instance: str, step_s: float) -> None:
        self._run_dir = run_dir
        self._instance = instance
        self._step_s = step_s
        self._left: dict[bytes, dict[str, int]] = {}
        self._silent: set[str] = set()
        self._record = (run_dir / RECORD).open("a", buffering=1)

    def beat_for_ever(self) -> None:
        socket = zmq.Context.instance().socket(zmq.PUB)
        socket.bind(engine_address(self._run_dir, self._instance, "beat"))
        number = 0
        while True:
            number += 1
            socket.send(_encode(Beat(self._instance, "lease", os.getpid(), number, Phase.READY)))
            time.sleep(0.5)

    def serve_for_ever(self) -> None:
        socket = zmq.Context.instance().socket(zmq.ROUTER)
        socket.sndhwm = 0
        socket.bind(engine_address(self._run_dir, self._instance, "sock"))
        next_step_s = time.monotonic()
        while True:
            if socket.poll(int(1000 * max(0.0, next_step_s - time.monotonic()))):
                self._take(*socket.recv_multipart())
            elif time.monotonic() >= next_step_s:
                next_step_s = max(next_step_s + self._step_s, time.monotonic())
                for client, left in self._left.items():
                    if left:
                        socket.send_multipart([client, _encode(StepReport(_step(left), EngineLoad()))])

    def _take(self, client: bytes, data: bytes) -> None:
        request = _requests.decode(data)
        left = self._left.setdefault(client, {})
        if isinstance(request, Submit):
            if request.params.seed == SILENT:
                self._silent.add(request.request_id)
            else:
                left[request.request_id] = request.params.max_tokens or 1
            self._write("submit")
        elif isinstance(request, Abort):
            self._silent.discard(request.request_id)
            left.pop(request.request_id, None)
            self._write("abort")

    def _write(self, what: str) -> None:
        self._record.write(f"{what} {time.monotonic()}\n")


def _step(left: dict[str, int]) -> list[Piece]:
    now = f"{time.monotonic_ns()} "
    pieces = []
    for request_id, count in list(left.items()):
        if count > 1:
            left[request_id] = count - 1
            pieces.append(Piece(request_id, now, [100]))
        else:
            del left[request_id]
            pieces.append(Piece(request_id, now, [100], FinishReason.LENGTH))
    return pieces


if __name__ == "__main__":
    engine = StreamEngine(Path(sys.argv[1]), sys.argv[2], float(sys.argv[3]))
    threading.Thread(target=engine.beat_for_ever, daemon=True).start()
    engine.serve_for_ever()
