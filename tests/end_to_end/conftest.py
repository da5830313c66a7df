"""A real site: `trivet serve` in a home of its own, with real engines, on this machine."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path

import psutil
import pytest
from ports import free_port

from trivet import cli
from trivet.client import Client
from trivet.demo_model import find_demo_model
from trivet.errors import TrivetError

DEADLINE_S = 120.0
TRIVET = [str(Path(sys.executable).with_name("trivet"))]


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("faults", "how test_kills.py kills")
    group.addoption("--kills", type=int, help="on the null backend (a short form)")
    group.addoption("--kills-real", type=int, help="on a real model (10)")
    group.addoption("--seed", type=int, help="as an earlier run printed it (a new one)")


def wait_for(what: str, is_done: Callable[[], object], deadline_s: float = DEADLINE_S) -> None:
    """Raises: AssertionError naming what did not come true."""
    end = time.monotonic() + deadline_s
    while not is_done():
        assert time.monotonic() < end, f"{what}: not within {deadline_s:.0f} s"
        time.sleep(0.02)


class Site:
    """One home, and whatever runs in it."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.port = free_port()
        self.log = home / "serve.log"
        self.parent: subprocess.Popen[bytes] | None = None

    wait_for = staticmethod(wait_for)

    @property
    def environ(self) -> dict[str, str]:
        return {**os.environ, "TRIVET_HOME": str(self.home), "TRIVET_PORT": str(self.port)}

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def token(self) -> str:
        return (self.home / "run" / "token").read_text().strip()

    def client(self) -> Client:
        return Client(self.base_url, self.token, timeout_s=DEADLINE_S)

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """A `trivet` command in this home."""
        return subprocess.run(
            [*TRIVET, *arguments], env=self.environ, capture_output=True, text=True, timeout=2 * DEADLINE_S
        )

    def run_here(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """As `run`, in this process: for a test of many commands; each takes a second to start."""
        out, err = io.StringIO(), io.StringIO()
        with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
            for name in ("TRIVET_HOME", "TRIVET_PORT"):
                patch.setenv(name, self.environ[name])
            try:
                code = cli.main(arguments)
            except SystemExit as end:
                code = int(end.code or 0)
        return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())

    def serve(self) -> None:
        with self.log.open("ab") as log:
            self.parent = subprocess.Popen(
                [*TRIVET, "serve", "--port", str(self.port)],
                env=self.environ,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        wait_for("the server answers", self._answers)

    def _answers(self) -> bool:
        assert self.parent is not None
        assert self.parent.poll() is None, f"serve ended: {self.log.read_text()}"
        try:
            with self.client() as client:
                return client.status().supervisor.up
        except (TrivetError, OSError):
            return False

    def launch(self, name: str, backend: str, replicas: int = 1, **settings: str) -> None:
        with self.client() as client:
            client.deployments.create(
                str(find_demo_model()), name=name, backend=backend, replicas=replicas, settings=settings
            )
        self.wait_ready(name, replicas)

    def wait_ready(self, name: str, replicas: int = 1) -> None:
        wait_for(f"{name} is ready", lambda: self.states(name).count("ready") == replicas)

    def states(self, name: str) -> list[str]:
        with self.client() as client:
            return [str(instance.state) for instance in client.instances.list(name)]

    def engine_pids(self) -> list[int]:
        return self._pids_of("trivet.engine.process")

    def supervisor_pid(self) -> int:
        (pid,) = self._pids_of("trivet_supervisor")
        return pid

    def supervisor_pid_or_none(self) -> int | None:
        pids = self._pids_of("trivet_supervisor")
        return pids[0] if pids else None

    def processes(self) -> list[psutil.Process]:
        """Everything that carries this home in its environment or its command line."""
        found = []
        for process in psutil.process_iter():
            try:
                belongs = process.environ().get("TRIVET_HOME") == str(self.home)
                belongs = belongs or any(str(self.home) in part for part in process.cmdline())
                if belongs and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
        return found

    def _pids_of(self, module: str) -> list[int]:
        found = []
        for process in self.processes():
            with suppress(psutil.NoSuchProcess):
                if module in process.cmdline():
                    found.append(process.pid)
        return sorted(found)

    def stop(self) -> int:
        """Ctrl-C, as a terminal sends it to the parent. Returns the exit code."""
        assert self.parent is not None
        self.parent.send_signal(signal.SIGINT)
        return self.parent.wait(DEADLINE_S)

    def clean_up(self) -> None:
        """Whatever a failed test has left, and what that still starts; a passed one leaves nothing."""
        wait_for("nothing is left", lambda: not self._kill_all())
        if self.parent is not None:
            self.parent.wait(DEADLINE_S)

    def _kill_all(self) -> bool:
        """Whether there was anything."""
        found = self.processes()
        for process in found:
            with suppress(psutil.NoSuchProcess):  # it has ended with its parent
                process.kill()
        return bool(found)


@pytest.fixture
def site(quick_disk: str | None) -> Iterator[Site]:
    # Short: socket paths hold 107 bytes.
    with tempfile.TemporaryDirectory(prefix="tv", dir=quick_disk) as home:
        site = Site(Path(home))
        yield site
        site.clean_up()


@pytest.fixture(scope="module")
def home_of_module(quick_disk: str | None) -> Iterator[Site]:
    """One home for all tests of a module, in which nothing runs yet."""
    with tempfile.TemporaryDirectory(prefix="tv", dir=quick_disk) as home:
        site = Site(Path(home))
        yield site
        site.clean_up()


@pytest.fixture(scope="module")
def site_of_module(home_of_module: Site) -> Site:
    """One site for all tests of a module, in which no model runs yet."""
    home_of_module.serve()
    return home_of_module


@pytest.fixture(scope="module")
def shared_site(site_of_module: Site) -> Site:
    """One site for all tests of a module, serving SmolLM2 on the CPU as "smol" and on null as "null"."""
    site_of_module.launch("smol", "cpu", max_num_seqs="8", max_model_len="2048")
    site_of_module.launch("null", "null")
    return site_of_module
