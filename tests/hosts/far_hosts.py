"""Hosts as network namespaces of this one, each with a home, a temporary folder and a link to be cut."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

NET = "10.213.7"
BRIDGE = "tvbr0"


def ip(*arguments: str) -> str:
    return subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True).stdout


def wait_for(
    what: str,
    is_done: Callable[[], object],
    deadline_s: float = 120.0,
    tell: Callable[[], object] = lambda: "",
) -> None:
    """Raises: AssertionError naming what did not come true, and what `tell` says then."""
    began = time.monotonic()
    while not is_done():
        assert time.monotonic() < began + deadline_s, f"{what}: not within {deadline_s:.0f} s: {tell()}"
        time.sleep(0.05)
    print(f"{time.monotonic() - began:6.1f} s until {what}", flush=True)


class FarHost:
    """One namespace; `run` starts something in it."""

    def __init__(self, name: str, number: int, folder: Path, up_s: int = 0) -> None:
        """Args: up_s: for how much longer than this machine it seems to be up, if its kernel can (5.6)."""
        self.name = name
        self.address = f"{NET}.{number}"
        self.home = folder / name
        self.tmp = folder / f"{name}-tmp"
        self._link = f"tv{name}"
        self._enter = ["ip", "netns", "exec", self._link]
        clocks = ["unshare", "--time", f"--monotonic={up_s}", f"--boottime={up_s}", "--fork"]
        if up_s and subprocess.run([*clocks, "true"], check=False, capture_output=True).returncode == 0:
            self._enter += clocks
        self._started: list[subprocess.Popen[bytes]] = []
        for made in (self.home, self.tmp):
            made.mkdir()

    def open(self) -> None:
        if self._link in ip("netns", "list").split():  # of a run that was killed
            self.close()
        ip("netns", "add", self._link)
        ip("link", "add", self._link, "type", "veth", "peer", "name", "eth0", "netns", self._link)
        ip("link", "set", self._link, "master", BRIDGE, "up")
        for arguments in (
            ("addr", "add", f"{self.address}/24", "dev", "eth0"),
            ("link", "set", "eth0", "up"),
            ("link", "set", "lo", "up"),
        ):
            ip("-n", self._link, *arguments)

    def close(self) -> None:
        self.kill()
        subprocess.run(["ip", "netns", "del", self._link], check=False)
        subprocess.run(["ip", "link", "del", self._link], check=False, stderr=subprocess.DEVNULL)

    def run(self, command: list[str], **environ: str) -> None:
        """Its output goes to `agent.log` in its home."""
        env = {**os.environ, **environ, "TRIVET_HOME": str(self.home), "TMPDIR": str(self.tmp)}
        with (self.home / "agent.log").open("ab") as log:
            self._started.append(
                subprocess.Popen(
                    [*self._enter, *command],
                    env=env,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            )

    def kill_by(self, word: str) -> None:
        """What has this in its command; the rest of the host goes on."""
        self._signal(self.pids_of(word), signal.SIGKILL)
        self._reap()

    def cut(self) -> None:
        """Nothing comes through any more, and nobody is told."""
        ip("link", "set", self._link, "down")

    def mend(self) -> None:
        ip("link", "set", self._link, "up")

    def freeze(self) -> None:
        """Its kernel still answers, and takes what is sent; nothing else does."""
        self._signal(self.pids(), signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(self.pids(), signal.SIGCONT)

    def pids(self) -> list[int]:
        return [int(pid) for pid in ip("netns", "pids", self._link).split()]

    def engines(self) -> list[int]:
        return self.pids_of("trivet.engine.process")

    def pids_of(self, word: str) -> list[int]:
        """What has this in its command."""
        found = []
        for pid in self.pids():
            try:
                if word.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                    found.append(pid)
            except OSError:  # it has ended
                continue
        return found

    def kill(self) -> None:
        """As if its power failed: everything at once."""
        names = ip("netns", "list").split()
        while self._link in names and (pids := self.pids()):
            self._signal(pids, signal.SIGKILL)
            time.sleep(0.02)
        self._reap()

    def _signal(self, pids: list[int], number: signal.Signals) -> None:
        for pid in pids:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue

    def _reap(self) -> None:
        for process in self._started:
            if process.pid not in self.pids():
                process.wait()


def open_bridge() -> None:
    subprocess.run(["ip", "link", "del", BRIDGE], check=False, stderr=subprocess.DEVNULL)
    ip("link", "add", BRIDGE, "type", "bridge")
    ip("addr", "add", f"{NET}.1/24", "dev", BRIDGE)
    ip("link", "set", BRIDGE, "up")


def close_bridge() -> None:
    subprocess.run(["ip", "link", "del", BRIDGE], check=False)
