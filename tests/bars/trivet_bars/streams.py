"""What streams cost the web server: `tests/run streams`.

A real server of one worker, an engine that costs next to nothing, and clients that only read, all on this
machine. CPU a token is that of the web worker while all streams run; what the requests cost before is told
by itself. Exit status: 0 all bars are met, 1 one is not.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
from trivet_bars.stream_engine import RECORD, SILENT

from trivet.config import Settings
from trivet.demo_model import find_demo_model
from trivet.models.model_files import open_model
from trivet_registry.database import open_database
from trivet_registry.deployments_store import create_deployment
from trivet_registry.instance_state import InstanceState
from trivet_registry.instances_store import create_instance, move_instance
from trivet_registry.models_store import register_model

START_S = 30.0
LARGE = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 8
NUM_STALLED = 500
NUM_ASKED = 100
NUM_ASKED_BESIDE = 20  # while streams run: each costs as much as 50 tokens
NUM_HUNG_UP = 20
MAX_US_PER_TOKEN = 20.0
MAX_KIB_PER_STREAM = 16.0
MAX_HEALTH_MS = 100.0
MAX_ABORT_MS = 50.0


@dataclass(frozen=True)
class Server:
    """A running web server. `worker` answers requests."""

    port: int
    worker: psutil.Process
    record: Path  # of the engine

    def cpu_s(self) -> float:
        times = self.worker.cpu_times()
        return float(times.user + times.system)

    def own_bytes(self) -> int:
        return int(self.worker.memory_full_info().uss)


@contextmanager
def served(step_s: float) -> Iterator[Server]:
    """A server with the deployment `sim`, whose engine makes a token for each stream every `step_s`."""
    with ExitStack() as stack:
        home = tempfile.mkdtemp(prefix="tv")
        stack.callback(shutil.rmtree, home, ignore_errors=True)
        settings = Settings(home=home)
        settings.paths.create()
        instance = _register(settings)
        engine = [sys.executable, "-m", "trivet_bars.stream_engine", str(settings.paths.run), instance]
        stack.callback(_end, subprocess.Popen([*engine, str(step_s)]))
        port = _free_port()
        command = [sys.executable, "-m", "trivet_web", "--home", home, "--port", str(port)]
        env = {**os.environ, "TRIVET_LOG_LEVEL": "ERROR"}
        web = subprocess.Popen(command, env=env)
        stack.callback(_end, web)
        _wait_until_ready(port)
        yield Server(port, psutil.Process(web.pid).children()[0], settings.paths.run / RECORD)


def measure_streams(server: Server, num_streams: int, num_tokens: int) -> dict[str, float]:
    """Figures of `num_streams` at once; see `stream_clients` for those of the clients."""
    _clients(server.port, 64, 5).communicate()  # threads, tokenizer and template are there
    before_cpu_s, before_bytes = server.cpu_s(), server.own_bytes()
    clients = _clients(server.port, num_streams, num_tokens)
    assert clients.stdout is not None
    begun = json.loads(clients.stdout.readline())
    begun_cpu_s, begun_s = server.cpu_s(), time.monotonic()
    if "all_begun" not in begun:
        return {**begun, "all_begun": 0}
    peak_bytes = server.own_bytes()
    beside_ms = health_ms(server, NUM_ASKED_BESIDE)
    done = json.loads(clients.stdout.readline())
    clients.wait()
    tokens = done["tokens"] - begun["all_begun"]
    return {
        **done,
        "cpu_us_per_token": round(1e6 * (server.cpu_s() - begun_cpu_s) / tokens, 1),
        "cpu_ms_per_request": round(1e3 * (begun_cpu_s - before_cpu_s) / num_streams, 2),
        "tokens_per_s": round(tokens / (time.monotonic() - begun_s)),
        "kib_per_stream": round((peak_bytes - before_bytes) / 1024 / num_streams, 1),
        "threads": server.worker.num_threads(),
        "health_beside_ms_max": round(max(beside_ms), 1),
    }


def measure_health(server: Server) -> dict[str, float]:
    """`/health/live` while clients stall: in sending (a byte, half a body, nothing) and in reading."""
    half = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{"
    with ExitStack() as stack:
        for number in range(NUM_STALLED):
            sock = stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=10))
            sock.sendall((b"P", half, b"", LARGE)[number % 4])
        _wait_until_idle(server)  # they stall
        times_ms = health_ms(server, NUM_ASKED)
    return {
        "health_ms_p50": round(sorted(times_ms)[NUM_ASKED // 2], 1),
        "health_ms_max": round(max(times_ms), 1),
    }


def _wait_until_idle(server: Server) -> None:
    latest_s, before_s = time.monotonic() + START_S, -1.0
    while (now_s := server.cpu_s()) > before_s + 0.05 and time.monotonic() < latest_s:
        before_s = now_s
        time.sleep(0.5)


def health_ms(server: Server, count: int) -> list[float]:
    """Of `/health/live`, one after the other."""
    times_ms = []
    for _ in range(count):
        begun_s = time.monotonic()
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/health/live", timeout=10) as answer:
            answer.read()
        times_ms.append(1e3 * (time.monotonic() - begun_s))
    return times_ms


def measure_aborts(server: Server) -> dict[str, float]:
    """From the close of a stream's socket to the engine's record, between tokens and before the first."""
    figures = {}
    for name, seed in (("flowing", 0), ("before_first_token", SILENT)):
        times_ms = [_hang_up(server, seed) for _ in range(NUM_HUNG_UP)]
        figures[f"abort_{name}_ms_p50"] = round(sorted(times_ms)[NUM_HUNG_UP // 2], 2)
        figures[f"abort_{name}_ms_max"] = round(max(times_ms), 2)
    return figures


def _hang_up(server: Server, seed: int) -> float:
    messages = [{"role": "user", "content": "hi"}]
    body = json.dumps({"model": "sim", "messages": messages, "stream": True, "max_tokens": 400, "seed": seed})
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    seen = len(server.record.read_text())
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as sock:
        sock.sendall((head + body).encode())
        _recorded(server, seen, "submit")
        if seed != SILENT:
            sock.recv(4096)
    closed_s = time.monotonic()
    return 1e3 * (_recorded(server, seen, "abort") - closed_s)


def _recorded(server: Server, seen: int, what: str) -> float:
    """CLOCK_MONOTONIC of the first such line after `seen` characters."""
    latest_s = time.monotonic() + START_S
    while time.monotonic() < latest_s:
        for line in server.record.read_text()[seen:].splitlines(keepends=True):
            if line.startswith(what) and line.endswith("\n"):
                return float(line.split()[1])
        time.sleep(0.001)
    raise SystemExit(f"the engine saw no {what} within {START_S} s")


def missed(figures: dict[str, float], num_streams: int) -> list[str]:
    """Bars that are not met, in words."""
    checks = (
        (figures.get("whole") == num_streams, f"{num_streams} streams are whole"),
        (figures.get("cpu_us_per_token", 1e9) <= MAX_US_PER_TOKEN, f"{MAX_US_PER_TOKEN} us of CPU a token"),
        (figures.get("kib_per_stream", 1e9) <= MAX_KIB_PER_STREAM, f"{MAX_KIB_PER_STREAM} KiB a stream"),
        (figures["health_ms_max"] <= MAX_HEALTH_MS, f"health within {MAX_HEALTH_MS} ms"),
        (
            figures.get("health_beside_ms_max", 1e9) <= MAX_HEALTH_MS,
            f"health beside streams within {MAX_HEALTH_MS} ms",
        ),
        (
            max(figures["abort_flowing_ms_max"], figures["abort_before_first_token_ms_max"]) <= MAX_ABORT_MS,
            f"a client that hangs up is aborted within {MAX_ABORT_MS} ms",
        ),
    )
    return [words for is_met, words in checks if not is_met]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--tokens", type=int, default=150)
    parser.add_argument("--step-s", type=float, default=0.1)
    given = parser.parse_args()
    with served(given.step_s) as server:
        figures = measure_health(server)
        figures |= measure_aborts(server)
        figures |= measure_streams(server, given.streams, given.tokens)
    print(json.dumps(figures, indent=1))
    failed = missed(figures, given.streams)
    for words in failed:
        print(f"missed: {words}", file=sys.stderr)
    return 1 if failed else 0


def _register(settings: Settings) -> str:
    database = open_database(settings.resolved_database_url)
    try:
        with database.session() as session:
            version = register_model(session, open_model(str(find_demo_model())), "smollm2")
            deployment = create_deployment(session, name="sim", version=version, backend="null", replicas=1)
            instance = create_instance(session, deployment)
            for state in (InstanceState.PLACING, InstanceState.STARTING, InstanceState.READY):
                move_instance(session, instance.id, state, "")
            return str(instance.id)
    finally:
        database.close()


def _clients(port: int, num_streams: int, num_tokens: int) -> subprocess.Popen[str]:
    command = [
        sys.executable,
        "-m",
        "trivet_bars.stream_clients",
        str(port),
        str(num_streams),
        str(num_tokens),
    ]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_until_ready(port: int) -> None:
    deadline_s = time.monotonic() + START_S
    while time.monotonic() < deadline_s:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health/ready", timeout=5):
                return
        except OSError:
            time.sleep(0.05)
    raise SystemExit(f"the server was not ready within {START_S} s")


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(timeout=10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


if __name__ == "__main__":
    sys.exit(main())
