"""A real site for browser tests: `trivet serve` in a home of its own, with engines on this machine."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import psutil
from ports import free_port

from trivet.client import Client
from trivet.demo_model import find_demo_model
from trivet.errors import TrivetError

DEADLINE_S = 120.0
ADMIN, PASSWORD = "admin", "a long password of words"


def wait_for(what: str, is_done: Callable[[], object], deadline_s: float = DEADLINE_S) -> None:
    """Raises: AssertionError naming what did not come true."""
    end = time.monotonic() + deadline_s
    while not is_done():
        assert time.monotonic() < end, f"{what}: not within {deadline_s:.0f} s"
        time.sleep(0.05)


class Site:
    """One home and its server; `close` leaves nothing."""

    def __init__(self, home: Path, **settings: str) -> None:
        self.home = home
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = home / "serve.log"
        environment = {**os.environ, "TRIVET_HOME": str(home), "TRIVET_PORT": str(self.port), **settings}
        trivet = str(Path(sys.executable).with_name("trivet"))
        with self.log.open("wb") as log:
            self.process = subprocess.Popen([trivet, "serve"], env=environment, stdout=log, stderr=log)
        wait_for("the server answers", self._answers)

    @property
    def token(self) -> str:
        return (self.home / "run" / "token").read_text().strip()

    @property
    def setup_link(self) -> str:
        """As the terminal shows it."""
        found = re.search(r"http://\S+/setup\?token=\w+", self.log.read_text())
        assert found is not None, self.log.read_text()
        return found[0]

    def client(self) -> Client:
        return Client(self.url, self.token, timeout_s=DEADLINE_S)

    def ensure_admin(self) -> None:
        with self.client() as client:
            if not client.users.list():
                client.users.create(ADMIN, PASSWORD, "admin")

    def add_user(self, name: str, role: str) -> None:
        with self.client() as client:
            client.users.create(name, PASSWORD, role)

    def register(self, name: str = "smollm2") -> None:
        with self.client() as client:
            client.models.add(str(find_demo_model()), name=name)

    def launch(self, backends: Mapping[str, str], **settings: str) -> None:
        """All at once: backend by name of the deployment. They are ready when it returns."""
        with self.client() as client:
            for name, backend in backends.items():
                client.deployments.create(
                    str(find_demo_model()), name=name, backend=backend, replicas=1, settings=settings
                )
        for name in backends:
            wait_for(f"{name} is ready", lambda name=name: self.states(name) == ["ready"])

    def states(self, name: str) -> list[str]:
        with self.client() as client:
            return [str(instance.state) for instance in client.instances.list(name)]

    def ready_pid(self, name: str) -> int | None:
        with self.client() as client:
            (instance,) = client.instances.list(name)
        return instance.pid if instance.state == "ready" else None

    def kill_engine(self, name: str) -> int:
        """Returns its pid."""
        pid = self.ready_pid(name)
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        return pid

    def kill_web_server(self) -> None:
        """With SIGKILL; the parent starts it again."""
        children = psutil.Process(self.process.pid).children(recursive=True)
        servers = [one for one in children if "trivet_web" in " ".join(one.cmdline())]
        assert servers
        for process in servers:
            process.kill()

    def close(self) -> None:
        """Ctrl-C, and whatever a failed test has left."""
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
        for process in psutil.process_iter():
            with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                if process.environ().get("TRIVET_HOME") == str(self.home):
                    process.kill()

    def _answers(self) -> bool:
        assert self.process.poll() is None, f"serve ended: {self.log.read_text()}"
        if "/setup?token=" not in self.log.read_text():
            return False
        try:
            with self.client() as client:
                return client.status().supervisor.up
        except (TrivetError, OSError):
            return False
