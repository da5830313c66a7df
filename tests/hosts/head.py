"""The site's own host: `trivet serve` with a launcher for other hosts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from datetime import UTC, datetime
from pathlib import Path

import psutil
from far_hosts import FarHost, wait_for
from ports import free_port

from trivet.client import Client
from trivet.client.results import Deployment, Device, Instance
from trivet.demo_model import find_demo_model
from trivet.errors import TrivetError

TRIVET = str(Path(sys.executable).with_name("trivet"))


class Stream(threading.Thread):
    """One long answer, and how it ended."""

    def __init__(self, head: Head, model: str, max_tokens: int) -> None:
        super().__init__(daemon=True)
        self._head, self._model, self._max_tokens = head, model, max_tokens
        self.num_chunks = 0
        self.failure = ""
        self.start()

    def run(self) -> None:
        try:
            with (
                self._head.client() as client,
                client.completions.stream(
                    self._model, "Hello", max_tokens=self._max_tokens, ignore_eos=True
                ) as chunks,
            ):
                for _ in chunks:
                    self.num_chunks += 1
        except (TrivetError, OSError) as error:
            self.failure = str(error) or type(error).__name__

    def goes_on(self) -> None:
        """More chunks come."""
        before = self.num_chunks
        wait_for("the stream goes on", lambda: self.num_chunks > before + 5 or self.failure)
        assert not self.failure


class Head:
    """`environ` chooses the launcher."""

    def __init__(self, home: Path, environ: dict[str, str]) -> None:
        home.mkdir()
        self.home = home
        self.port = free_port()
        self._environ = {**os.environ, "TRIVET_HOME": str(home), "TRIVET_PORT": str(self.port), **environ}
        self._parent: subprocess.Popen[bytes] | None = None

    def serve(self) -> None:
        with (self.home / "serve.log").open("ab") as log:
            self._parent = subprocess.Popen(
                [TRIVET, "serve"], env=self._environ, stdout=log, stderr=log, start_new_session=True
            )
        wait_for("the server answers", self._answers)

    def _answers(self) -> bool:
        assert self._parent is not None
        assert self._parent.poll() is None, (self.home / "serve.log").read_text()
        try:
            with self.client() as client:
                return client.status().supervisor.up
        except (TrivetError, OSError):
            return False

    def client(self) -> Client:
        token = (self.home / "run" / "token").read_text().strip()
        return Client(f"http://127.0.0.1:{self.port}", token, timeout_s=120.0)

    def run(self, *arguments: str) -> str:
        """A `trivet` command of this home."""
        done = subprocess.run(
            [TRIVET, *arguments], env=self._environ, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def launch(self, name: str, device: str | None = None, **settings: str) -> None:
        with self.client() as client:
            client.deployments.create(
                str(find_demo_model()), name=name, backend="null", device=device, settings=settings
            )
        wait_for(f"{name} is ready", lambda: self.where(name), tell=lambda: self.reasons(name))

    def launch_model(self, model: Path, name: str, backend: str, settings: dict[str, str]) -> None:
        """And wait until it is ready."""
        with self.client() as client:
            client.deployments.create(str(model), name=name, backend=backend, settings=settings)
        wait_for(f"{name} is ready", lambda: self.where(name), tell=lambda: self.reasons(name))

    def stop(self, name: str) -> None:
        with self.client() as client:
            client.deployments.stop(name, 0.0)
        wait_for(f"{name} has stopped", lambda: not self.instances(name))

    def instances(self, name: str) -> list[Instance]:
        with self.client() as client:
            return list(client.instances.list(name))

    def instance(self, name: str) -> Instance:
        (one,) = self.instances(name)
        return one

    def devices(self) -> list[Device]:
        with self.client() as client:
            return list(client.devices())

    def deployment(self, name: str) -> Deployment:
        with self.client() as client:
            return client.deployments.get(name)

    def reasons(self, name: str) -> list[str]:
        """Of all events of the deployment."""
        with self.client() as client:
            return [event.reason for event in client.events(name)]

    def where(self, name: str) -> str:
        """The host on which it is ready; empty while it is not."""
        found = [i for i in self.instances(name) if i.state == "ready"]
        return found[0].device_uids[0].partition("/")[0] if found else ""

    def ask(self, name: str) -> str:
        with self.client() as client:
            return client.completions.complete(name, "Hello", max_tokens=4).text

    def knows(self, *hosts: FarHost) -> None:
        """Wait until their devices have been looked at since, and can be used."""
        since = datetime.now(UTC)

        def are_known() -> bool:
            found = [d for d in self.devices() if d.as_of and d.as_of > since and not d.unusable_because]
            return {host.name for host in hosts} <= {device.host for device in found}

        names = " and ".join(host.name for host in hosts)
        wait_for(f"{names} can be used", are_known, tell=self.devices)

    def supervisor_pid(self) -> int | None:
        """None while there is none."""
        assert self._parent is not None
        for child in psutil.Process(self._parent.pid).children():
            try:
                if "trivet_supervisor" in child.cmdline():
                    return child.pid
            except psutil.NoSuchProcess:
                continue
        return None

    def kill(self) -> None:
        """As if its host's power failed: all that `serve` has started here, at once."""
        assert self._parent is not None
        parent = psutil.Process(self._parent.pid)
        for process in [parent, *parent.children(recursive=True)]:
            process.kill()
        self._parent.wait()

    def close(self) -> None:
        """Ctrl-C: what it started is ended, wherever it is."""
        if self._parent is not None:
            self._parent.send_signal(signal.SIGINT)
            try:
                self._parent.wait(90)
            except subprocess.TimeoutExpired:
                os.killpg(self._parent.pid, signal.SIGKILL)
                self._parent.wait()


def engines_of(hosts: dict[str, FarHost]) -> dict[str, int]:
    """How many run on each."""
    return {name: len(host.engines()) for name, host in hosts.items()}
