"""Starts a real engine process, as the supervisor does, and watches its heart until it says READY."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec
import zmq

from trivet.bench.figures import Figures
from trivet.bench.startup import Order, rss_parts
from trivet.config import engine_address
from trivet.errors import BackendError
from trivet.messages import Beat, LaunchOrder, Phase

INSTANCE = "bench"
READY_TIMEOUT_S = 600.0
STOP_TIMEOUT_S = 30.0
POLL_MS = 200


def start_engine(order: Order, env: Mapping[str, str]) -> Figures:
    """`ready_s` from the start of the process to READY, and what it then holds. The process ends again.

    Args:
        env: of the process, in full.

    Raises: BackendError with the engine's own reason where it does not become ready.
    """
    with tempfile.TemporaryDirectory(prefix="tv") as folder:  # short: socket paths hold 107 bytes
        file, log = Path(folder) / "order.json", Path(folder) / "log"
        file.write_bytes(msgspec.json.encode(_launch_order(order, folder)))
        with zmq.Context() as context, context.socket(zmq.SUB) as beats, log.open("wb") as out:
            beats.subscribe(b"")
            beats.reconnect_ivl = 1  # ms; the process binds the address later
            beats.linger = 0
            beats.connect(engine_address(folder, INSTANCE, "beat"))
            start = time.monotonic()
            command = [sys.executable, "-m", "trivet.engine.process", str(file)]
            process = subprocess.Popen(command, env=dict(env), stdout=out, stderr=out)
            try:
                beat = _wait_ready(process, beats, log)
                ready_s = time.monotonic() - start
                return {"ready_s": ready_s, **_resident(process.pid, beat)}
            finally:
                process.terminate()
                _wait_end(process)


def _launch_order(order: Order, folder: str) -> LaunchOrder:
    return LaunchOrder(
        instance_id=INSTANCE,
        lease="bench",
        model_path=order.model,
        served_model_name=INSTANCE,
        backend=order.backend,
        device_uids=[] if order.device is None else [order.device],
        settings=order.settings,
        run_dir=folder,
    )


def _wait_ready(process: subprocess.Popen[bytes], beats: zmq.Socket[bytes], log: Path) -> Beat:
    deadline = time.monotonic() + READY_TIMEOUT_S
    while time.monotonic() < deadline:
        if beats.poll(POLL_MS):
            beat = msgspec.msgpack.decode(beats.recv(), type=Beat)
            if beat.phase is Phase.READY:
                return beat
            if beat.phase is Phase.FAILED:
                raise BackendError(f"the engine process failed: {beat.reason}")
        if process.poll() is not None:
            last = (log.read_text(errors="replace").strip().splitlines() or ["it printed nothing"])[-1]
            raise BackendError(f"the engine process ended with exit code {process.returncode}: {last}")
    raise BackendError(f"the engine process was not ready within {READY_TIMEOUT_S:g} s")


def _resident(pid: int, beat: Beat) -> Figures:
    figures: Figures = {f"memory_{name}_bytes": float(size) for name, size in beat.memory}
    return figures | {name: float(size) for name, size in rss_parts(pid).items()}


def _wait_end(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
