"""Engines that are loaded and wait for their turn, each a load of `trivet.bench`: all are asked alike."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
from trivet_bars.bars import Transport
from trivet_bars.child import Child, EngineFailed
from trivet_bars.ladder import Measure
from trivet_bars.peer_kinds import Peer, pinned_threads

from trivet.bench.arrivals import Arrivals
from trivet.bench.load import Load, LoadRun
from trivet.bench.prompts import Form
from trivet.bench.server_load import FIRST_ID, LAST_ID, ServerLoad
from trivet.bench.target import Target
from trivet.bench.timeline import Timeline
from trivet.bench.workload import Turn, Workload
from trivet.client import Client
from trivet.errors import TrivetError

LOAD_TIMEOUT_S = 600.0  # vLLM took 230 s to compile its graphs on a busy machine
ORDER_TIMEOUT_S = 300.0
TRIVET_TIMEOUT_S = 60.0  # to READY; the kernels may have to be built first
POLL_S = 0.1
TRIVET = "trivet"
SOURCES = Path(__file__).parent.parent  # holds the package trivet_bars, for the runners


class Engine(Protocol):
    """One engine of the comparison."""

    name: str
    transport: Transport
    skips: frozenset[str]
    command: str
    versions: Mapping[str, str]

    def load(self, measure: Measure) -> Load:
        """The engine as a load with the sampling of a measure."""

    def peak_rss_bytes(self) -> int:
        """The peaks of its processes, added up; pages that they share count for each of them."""

    def stop(self) -> None:
        """End its processes."""


def python_path() -> str:
    """The folder of this package, and what else the caller has there."""
    return os.pathsep.join([str(SOURCES), *filter(None, [os.environ.get("PYTHONPATH")])])


class RunnerEngine:
    """An engine in the process of its runner (`orders.py`)."""

    transport = Transport.IN_PROCESS

    def __init__(
        self, name: str, command: Sequence[str], env: Mapping[str, str], log: Path, skips: frozenset[str]
    ) -> None:
        self.name = name
        self.skips = skips
        self.command = " ".join(command)
        self._child = Child(name, command, {**env, "PYTHONPATH": python_path()}, log)
        try:
            hello = json.loads(self._child.read_line(LOAD_TIMEOUT_S))
        except BaseException:
            self.stop()
            raise
        self.versions: Mapping[str, str] = hello["versions"]

    def load(self, measure: Measure) -> Load:
        """As `Engine`."""
        return RunnerLoad(self._child, measure.temperature, measure.top_p)

    def peak_rss_bytes(self) -> int:
        """As `Engine`."""
        return self._child.peak_rss_bytes()

    def stop(self) -> None:
        """As `Engine`."""
        self._child.stop()


@dataclass(slots=True)
class RunnerLoad:
    """A runner as a load (`trivet.bench.load.Load`): single turns of one length that are sent together."""

    child: Child
    temperature: float
    top_p: float
    form: Form = "ids"
    # The same ids as a server is asked with.
    id_range: tuple[int, int] = field(default=(FIRST_ID, LAST_ID))

    def run(
        self, workload: Workload, arrivals: Arrivals, rng: np.random.Generator, on_done: Callable[[], object]
    ) -> LoadRun:
        """Raises: EngineFailed where the runner dies or an order fails."""
        assert arrivals.rate is None, "a runner takes orders, and no arrivals over time"
        for turn in workload.warm_up:
            self._order([turn])
        done = self._order([turn for turns in workload.conversations for turn in turns])
        return LoadRun(done, {})

    def _order(self, turns: Sequence[Turn]) -> list[Timeline]:
        order = {
            "prompts": [turn.prompt.ids for turn in turns],
            "output_tokens": turns[0].max_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
        }
        self.child.write_line(json.dumps(order))
        answer = json.loads(self.child.read_line(ORDER_TIMEOUT_S))
        if "error" in answer:
            raise EngineFailed(f"{self.child.name}: {answer['error']}")
        return [
            timeline_of(turn, times_s, counts)
            for turn, times_s, counts in zip(turns, answer["times_s"], answer["num_tokens"], strict=True)
        ]


def timeline_of(turn: Turn, times_s: Sequence[float], counts: Sequence[int]) -> Timeline:
    """A request that was due and sent at 0."""
    timeline = Timeline(0.0, turn.max_tokens, num_prompt_tokens=len(turn.prompt.ids or ()), sent_s=0.0)
    for at_s, count in zip(times_s, counts, strict=True):
        timeline.add(at_s, count)
    timeline.finish(times_s[-1])
    return timeline


class ServerEngine:
    """A peer's server, asked over HTTP by the load generator of `trivet bench serve`."""

    transport = Transport.HTTP

    def __init__(self, peer: Peer, folder: Path, threads: int, log: Path) -> None:
        self.name = peer.name
        self.skips = peer.skips
        port = free_port()
        command = peer.command(folder, threads, port)
        self.command = " ".join(command)
        self._url = f"http://127.0.0.1:{port}"
        self._model = Path(peer.model).name
        self._child = Child(peer.name, command, peer.env(threads), log)
        try:
            wait_for_health(self._url, self._child)
            self.versions: Mapping[str, str] = {peer.name: _first_line(peer.version_command(folder))}
        except BaseException:
            self.stop()
            raise

    def load(self, measure: Measure) -> Load:
        """As `Engine`."""
        return server_load(self._url, self._model, measure)

    def peak_rss_bytes(self) -> int:
        """As `Engine`."""
        return self._child.peak_rss_bytes()

    def stop(self) -> None:
        """As `Engine`."""
        self._child.stop()


class TrivetServer:
    """`trivet serve` in a home of its own, with the model deployed once."""

    transport = Transport.HTTP
    skips: frozenset[str] = frozenset()

    def __init__(self, model: Path, settings: Mapping[str, str], threads: int, folder: Path) -> None:
        self.name = TRIVET
        self._home = folder / "home"  # short: the path of a socket holds 107 bytes
        self._home.mkdir()
        port = free_port()
        program = str(Path(sys.executable).with_name("trivet"))
        command = [program, "serve", "--port", str(port)]
        pairs = " ".join(f"--set {key}={value}" for key, value in settings.items())
        self.command = f"trivet serve --port {port}; trivet launch {model} --name {TRIVET} {pairs}"
        self.versions: Mapping[str, str] = {"trivet": _first_line([program, "--version"])}
        self._url = f"http://127.0.0.1:{port}"
        env = {**pinned_threads(threads), "TRIVET_HOME": str(self._home)}
        self._child = Child("trivet serve", command, env, folder / "trivet-serve.log")
        try:
            wait_for_health(self._url, self._child)
            self._deploy(model, settings)
        except BaseException:
            self.stop()
            raise

    def _deploy(self, model: Path, settings: Mapping[str, str]) -> None:
        token = (self._home / "run" / "token").read_text().strip()
        with Client(self._url, token, timeout_s=LOAD_TIMEOUT_S) as client:
            retried(
                lambda: client.deployments.create(str(model), name=TRIVET, settings=dict(settings)),
                self._child,
            )
            end = time.monotonic() + TRIVET_TIMEOUT_S
            while True:
                self._child.check_alive()
                instances = client.instances.list(TRIVET)
                if [str(instance.state) for instance in instances] == ["ready"]:
                    return
                if time.monotonic() > end:
                    told = "; ".join(f"{i.state}: {i.reason}" for i in instances) or "there is no instance"
                    raise self._child.failed(f"has no engine after {TRIVET_TIMEOUT_S:.0f} s, {told}")
                time.sleep(POLL_S)

    def load(self, measure: Measure) -> Load:
        """As `Engine`."""
        return server_load(self._url, TRIVET, measure)

    def peak_rss_bytes(self) -> int:
        """As `Engine`."""
        return self._child.peak_rss_bytes()

    def stop(self) -> None:
        """Ctrl-C: the parent drains and ends supervisor, web and engine."""
        self._child.stop(signal.SIGINT)


def retried(create: Callable[[], object], child: Child) -> None:
    """The supervisor may need a moment more than the web server. Raises: EngineFailed, TrivetError."""
    end = time.monotonic() + LOAD_TIMEOUT_S
    while True:
        child.check_alive()
        try:
            create()
            return
        except TrivetError:
            if time.monotonic() > end:
                raise
            time.sleep(POLL_S)


def server_load(url: str, model: str, measure: Measure) -> ServerLoad:
    """End tokens are ignored, so that every answer has its full length."""
    sampling = {"temperature": measure.temperature, "top_p": measure.top_p, "ignore_eos": True}
    return ServerLoad(Target(url, model), sampling, "ids")


def wait_for_health(url: str, child: Child, timeout_s: float = LOAD_TIMEOUT_S) -> None:
    """Until the server says that it can serve. Raises: EngineFailed."""
    end = time.monotonic() + timeout_s
    while True:
        child.check_alive()
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=5.0):
                return
        except (urllib.error.URLError, OSError):
            pass  # not yet
        if time.monotonic() > end:
            raise child.failed(f"did not answer {url}/health in {timeout_s:.0f} s")
        time.sleep(POLL_S)


def free_port() -> int:
    """Nobody listens there now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _first_line(command: Sequence[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ})
    lines = (done.stdout + done.stderr).strip().splitlines()
    return lines[0] if lines else "unknown"
